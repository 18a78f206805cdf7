"""The bound on waiting: an order of our choice that lets nobody wait longer than ``max_wait_ratio`` times its wait under FCFS.

Work is counted on a clock of its own: it advances by the work that is served, whoever it is served to. Work a request brings is
declared when it arrives and does not depend on the order (prompt tokens, say). Then the virtual FCFS schedule needs no simulation::

    clock at arrival of r: a      backlog B = declared work that arrived before r and is not served yet      own work w
    FCFS has served r at          a + B + w       exactly: it serves those before r, then r
    ours has by r's *due* time    a + ratio · (B + w)

    slack of r  =  due of r  -  clock  -  work left of all that are due by then (r's own too)

**Theorem.** As long as no slack is negative, serving by due time (EDF) meets them all; this is the classic feasibility test of a
single server (Jackson 1955; Liu and Layland 1973). So *any* order is allowed while the least slack covers what is served next;
after that only requests that are due no later than the last one without such slack are served (they are *pressing*), by due
time, which leaves the slacks as they are. An arrival cannot break this: appended to a schedule that meets all due times it is
served at a + B + w, before it is due, and where some order meets them all, EDF does too.

It asks that (1) the server is never idle while r waits, (2) work served is counted as declared, (3) no request brings work anew. A
server that serves in pieces adds a piece. (1) and (2) fail where slots or blocks keep r out, (3) on preemption by recompute; the
bound is then as good as the room that is made. In seconds the ratio is the same as far as the server works at one pace under both
orders; steps that decode more take longer, which is why users of this class state a ratio below the one they promise.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Ticket:
    """A request's place in order of arrival (``serial``), its work on the clock, and when it is due on it.

    ``is_deferred`` belongs to :mod:`tandem.scheduling.deferral`: others may go first until it presses.
    """

    serial: int
    work_left: float
    due: float
    is_deferred: bool = False


_Entry = tuple[float, int, Ticket]


class WaitBound:
    """Owns the work clock, the backlog and the due times. Not thread-safe.

    ``is_pressing`` costs nothing but now and then one pass over all tickets: when what is known of the least slack (it shrinks by
    no more than is served out of order and arrives) does not rule out that somebody is late.
    """

    def __init__(self, max_wait_ratio: float) -> None:
        """``max_wait_ratio``: at least 1; infinity binds nothing (first come, first served needs no bound)."""
        assert max_wait_ratio >= 1.0, max_wait_ratio
        self._ratio = max_wait_ratio
        self._now = 0.0
        self._backlog = 0.0
        self._by_due: list[_Entry] = []  # sorted; tickets without work left stay until the next pass
        self._num_open = 0  # tickets with work left
        self._slack = math.inf  # at most the least slack of all
        self._critical: Ticket | None = None  # the last by due time whose slack is too small for another piece
        self._later_slack = math.inf  # least slack of those due after the critical one (all, if there is none) at the last pass
        self._lost = 0.0  # by how much these can have shrunk since
        self._newer_slack = math.inf  # at most the least slack of those that came since

    @property
    def now(self) -> float:
        return self._now

    @property
    def backlog(self) -> float:
        """Declared work that is not served yet."""
        return self._backlog

    def arrive(self, serial: int, work: float) -> Ticket:
        """Give a request its place; ``serial`` is that in order of arrival."""
        assert work >= 0.0, work
        before = self._backlog + work
        due = math.inf if math.isinf(self._ratio) else self._now + self._ratio * before
        ticket = Ticket(serial, 0.0, due)
        self._insert(ticket, work, due - self._now - before)
        return ticket

    def renew(self, ticket: Ticket, work: float, *, is_due_now: bool = False) -> None:
        """A request that was served lost what was done for it and brings this work again. It keeps its place and due time.

        ``is_due_now``: it had begun to answer, so nobody is to be served before it.
        """
        self.withdraw(ticket)
        if is_due_now:
            ticket.due = min(ticket.due, self._now + work)
        self._insert(ticket, work, ticket.due - self._now - self._backlog - work)

    def serve(self, ticket: Ticket, work: float) -> None:
        """Count work that was done for a request; more than it has left counts as what it has left."""
        done = min(work, ticket.work_left)
        self._now += done
        if self._critical is None or ticket.due > self._critical.due:
            self._lose(done)
        self._take(ticket, done)

    def withdraw(self, ticket: Ticket) -> None:
        """A request goes away; what it has left is never served."""
        self._take(ticket, ticket.work_left)

    def is_pressing(self, ticket: Ticket, piece: float) -> bool:
        """Whether only such requests may be served, were one that is not pressing to get the next ``piece`` of work."""
        critical = self.critical(piece)
        return critical is not None and ticket.due <= critical.due

    def critical(self, piece: float) -> Ticket | None:
        """The one that a ``piece`` of work for somebody else could make late, if there is one."""
        if self._critical is None and self._slack < piece:
            self._find_least_slack(piece)
        return self._critical

    def _insert(self, ticket: Ticket, work: float, slack: float) -> None:
        ticket.work_left = work
        self._num_open += work > 0.0
        self._backlog += work
        self._lose(work)
        self._slack = min(self._slack, slack)
        self._newer_slack = min(self._newer_slack, slack)
        if not math.isinf(ticket.due):
            if len(self._by_due) > 2 * self._num_open + 64:
                self._by_due = [entry for entry in self._by_due if entry[2].work_left > 0.0]
            bisect.insort(self._by_due, (ticket.due, ticket.serial, ticket), key=_due_of)

    def _take(self, ticket: Ticket, work: float) -> None:
        self._num_open -= 0.0 < ticket.work_left <= work
        ticket.work_left -= work
        self._backlog = max(self._backlog - work, 0.0)
        if ticket.work_left <= 0.0 and ticket is self._critical:
            self._critical = None
            self._slack = min(self._later_slack - self._lost, self._newer_slack)

    def _lose(self, work: float) -> None:
        self._slack -= work
        self._lost += work
        self._newer_slack -= work

    def _find_least_slack(self, piece: float) -> None:
        left, later = self._now, math.inf
        living: list[_Entry] = []
        previous: Ticket | None = None
        self._critical = None
        for entry in self._by_due:
            due, _, ticket = entry
            if ticket.work_left <= 0.0 or due != ticket.due or ticket is previous:
                continue
            living.append(entry)
            previous = ticket
            left += ticket.work_left
            slack = due - left
            if slack < piece:
                self._critical, later = ticket, math.inf
            elif slack < later:
                later = slack
        self._by_due = living
        self._slack = self._later_slack = later
        self._lost, self._newer_slack = 0.0, math.inf


def _due_of(entry: _Entry) -> tuple[float, int]:
    return entry[0], entry[1]
