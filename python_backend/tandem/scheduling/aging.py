"""The bound on waiting: an order of our choice that lets nobody wait longer than three times its wait under FCFS.

Work is counted on a clock of its own: it advances by the work that is served, whoever it is served to. Work a request brings is
declared when it arrives and does not depend on the order (prompt tokens, say). Then the virtual FCFS schedule needs no simulation::

    clock at arrival of r: a      backlog B = declared work that arrived before r and is not served yet      own work w
    FCFS starts r at              a + B           exactly: it serves those before r, then r
    we promote r at               a + 2 B         promoted requests go first, among themselves in order of arrival
    so r starts by                a + 3 B         from the promotion on, only requests that arrived before r are served before it,
    and is served by              a + 3 B + w     and at most B of their work is left

**Theorem.** If (1) the server is never idle while r waits, (2) work served is counted as declared, (3) no request that arrived
before r withdraws or brings work anew, then the wait of r on the work clock, until it starts and until it is served (an engine:
its first token), is at most three times that under FCFS. A server that serves in pieces (a router: whole requests) adds the piece
that runs at the arrival and the one that reaches the promotion. In seconds the ratio is the same as far as the server works at one
pace under both orders.

(1) and (2) ask that neither slots nor blocks keep r out. (3) fails on a cancel (FCFS would then have been faster for those behind
it) and on preemption by recompute; the bound is then relative to the schedule in force when r arrived. A request that finds nothing
before it is promoted at once, so it is never delayed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Ticket:
    """A request's place in order of arrival (``serial``), and when it is promoted (``promote_at``, on the work clock).

    ``work_left`` changes as it is served; ``key`` orders those that are not promoted.
    """

    serial: int
    promote_at: float
    work_left: float
    key: float


class AgingClock:
    """Owns the work clock and the backlog. Not thread-safe."""

    def __init__(self) -> None:
        self._now = 0.0
        self._backlog = 0.0

    @property
    def now(self) -> float:
        return self._now

    @property
    def backlog(self) -> float:
        """Declared work that is not served yet."""
        return self._backlog

    def arrive(self, serial: int, work: float, key: float, *, is_promoted: bool = False) -> Ticket:
        """Give a request its place. ``key`` decides the order among those not promoted, the lowest first.

        ``serial`` is its place in order of arrival. One that was served and lost what was done for it (preemption) comes back
        under its old serial and is promoted at once, as FCFS would have it.
        """
        assert work >= 0.0, work
        promote_at = self._now if is_promoted else self._now + 2.0 * self._backlog
        ticket = Ticket(serial, promote_at, work, key)
        self._backlog += work
        return ticket

    def serve(self, ticket: Ticket, work: float) -> None:
        """Count work that was done for a request; more than it has left counts as what it has left."""
        done = min(work, ticket.work_left)
        ticket.work_left -= done
        self._now += done
        self._backlog = max(self._backlog - done, 0.0)

    def withdraw(self, ticket: Ticket) -> None:
        """A request goes away; what it has left is never served."""
        self._backlog = max(self._backlog - ticket.work_left, 0.0)
        ticket.work_left = 0.0

    def rank(self, ticket: Ticket) -> tuple[int, float, int]:
        """Sorts requests as they are to be served now, the lowest first."""
        if self._now >= ticket.promote_at:
            return 0, float(ticket.serial), ticket.serial
        return 1, ticket.key, ticket.serial
