"""Who steps back when not everybody can be served in time: as few as possible, the largest first.

Requests are served in order of arrival, which meets equal targets best. When the work in front of a new one would make it miss the
target, the request that brings most steps back until the others are done: the rule by which Moore and Hodgson (1968) make the
number of late jobs least; for jobs that come over time and have equal targets see Kise, Ibaraki and Mine (1978). The tail pays
with few requests for what the others gain, where shortest-first makes all long ones pay.

Under more load than the target allows, more and more would step back and become the tail themselves. So the target gives way: it
doubles whenever ``_DOUBLE_AFTER`` requests more have stepped back than the share allowed, and comes down again in the same way.
"""

from __future__ import annotations

import heapq

from tandem.scheduling.wait_bound import Ticket

ALLOWED_SHARE = 0.01
"""Of all requests may step back: they are the ones beyond a P99."""

_DOUBLE_AFTER = 70.0


class DeferralRule:
    """Owns ``is_deferred`` of the tickets and the target. Not thread-safe."""

    def __init__(self) -> None:
        self._in_order = 0.0  # work left of tickets that are not deferred
        self._largest: list[tuple[float, int, Ticket]] = []  # heap by minus size as it was when pushed, then by number of the push
        self._num_pushed = 0
        self._size_without_work: dict[Ticket, float] = {}
        self._excess = 0.0

    @property
    def target_factor(self) -> float:
        """By which the stated target is stretched now, at least 1."""
        return float(2.0 ** (self._excess / _DOUBLE_AFTER))

    def arrive(self, ticket: Ticket, target_work: float, *, other_size: float = 0.0) -> None:
        """A request comes. ``target_work``: what is served within the stated target; infinity lets nobody step back.

        ``other_size``: what it brings beside its work on the clock, in the same unit (its answer); counts towards who is largest.
        """
        self._excess = max(self._excess - ALLOWED_SHARE, 0.0)
        self._size_without_work[ticket] = other_size
        self._put_in_order(ticket)
        self._push(ticket)
        while self._in_order > target_work * self.target_factor and self._largest:
            self._defer_largest()

    def renew(self, ticket: Ticket, *, may_step_back: bool) -> None:
        """A ticket that was served has work again; unless it ``may_step_back``, it is never deferred again."""
        if may_step_back and ticket.is_deferred:
            return
        self._put_in_order(ticket)
        if may_step_back:
            self._push(ticket)

    def _put_in_order(self, ticket: Ticket) -> None:
        ticket.is_deferred = False
        self._in_order += ticket.work_left

    def _push(self, ticket: Ticket) -> None:
        self._num_pushed += 1
        heapq.heappush(self._largest, (-self._size(ticket), self._num_pushed, ticket))

    def serve(self, ticket: Ticket, work: float) -> None:
        """To be called before the work is taken off the ticket."""
        if not ticket.is_deferred:
            self._in_order = max(self._in_order - min(work, ticket.work_left), 0.0)

    def forget(self, ticket: Ticket) -> None:
        """A request has gone; to be called before what it has left is taken off the ticket."""
        self.serve(ticket, ticket.work_left)
        self._size_without_work.pop(ticket, None)
        if len(self._largest) > 2 * len(self._size_without_work) + 64:
            self._largest = [entry for entry in self._largest if entry[2] in self._size_without_work and not entry[2].is_deferred]
            heapq.heapify(self._largest)

    def _size(self, ticket: Ticket) -> float:
        return ticket.work_left + self._size_without_work[ticket]

    def _defer_largest(self) -> None:
        minus_size, _, ticket = heapq.heappop(self._largest)
        if ticket.is_deferred or ticket.work_left <= 0.0 or ticket not in self._size_without_work:
            return
        if self._size(ticket) < -minus_size:  # a part of it was served since
            self._push(ticket)
            return
        ticket.is_deferred = True
        self._in_order = max(self._in_order - ticket.work_left, 0.0)
        self._excess += 1.0
