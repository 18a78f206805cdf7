"""Waiting requests in the order of bound and deferral, at O(log n) per operation."""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from tandem.scheduling.deferral import DeferralRule
from tandem.scheduling.wait_bound import Ticket, WaitBound

Item = TypeVar("Item", bound=Hashable)
_Entry = tuple[float, int]
"""What sorts it, and the number of the stay in this queue that it belongs to."""


class TicketQueue(Generic[Item]):
    """Items that wait with a ticket, and the rank of tickets whose items were taken out and are being served. Not thread-safe.

    Pressing ones go first, by due time; then those in order of arrival; then those that stepped back, by due time. Heaps by
    arrival and by due time: an item that is taken out stays in them until it comes up; when more than half of a heap is such
    leftovers, it is built anew, so memory follows the number waiting.
    """

    def __init__(self, *, max_wait_ratio: float) -> None:
        """``max_wait_ratio``: see :mod:`tandem.scheduling.wait_bound`; infinity and no targets are first come, first served."""
        self._bound = WaitBound(max_wait_ratio)
        self._rule = DeferralRule()
        self._stays: dict[Item, int] = {}
        self._items: dict[int, tuple[Item, Ticket]] = {}
        self._next_stay = 0
        self._by_arrival: list[_Entry] = []
        self._by_due: list[_Entry] = []

    def __len__(self) -> int:
        return len(self._stays)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._stays)

    def __contains__(self, item: object) -> bool:
        return item in self._stays

    @property
    def backlog(self) -> float:
        """Work that was declared and is not served yet, of waiting items and those being served."""
        return self._bound.backlog

    def arrive(self, item: Item, serial: int, work: float, *, target_work: float = math.inf, other_size: float = 0.0) -> Ticket:
        """A new item waits. ``serial`` in order of arrival; the rest as in :class:`DeferralRule`."""
        ticket = self._bound.arrive(serial, work)
        self._rule.arrive(ticket, target_work, other_size=other_size)
        self._add(item, ticket)
        return ticket

    def come_back(self, item: Item, ticket: Ticket, work: float, *, has_answered: bool) -> None:
        """An item that was taken out waits again and needs this work; one that ``has_answered`` a part goes before all others."""
        self._rule.serve(ticket, ticket.work_left)
        self._bound.renew(ticket, work, is_due_now=has_answered)
        self._rule.renew(ticket, may_step_back=not has_answered)
        self._add(item, ticket)

    def peek(self, piece: float) -> Item | None:
        """The item to serve next, with a ``piece`` of work."""
        due = self._first(self._by_due)
        if due is None:
            return None
        if self._bound.is_pressing(due[1], piece):
            return due[0]
        in_order = self._first(self._by_arrival)
        return due[0] if in_order is None else in_order[0]

    def remove(self, item: Item) -> bool:
        """Take an item out; False when it does not wait here. The ticket stays valid: the item may come back with it."""
        stay = self._stays.pop(item, None)
        if stay is None:
            return False
        del self._items[stay]
        return True

    def serve(self, ticket: Ticket, work: float) -> None:
        """Work was done for the item of a ticket."""
        self._rule.serve(ticket, work)
        self._bound.serve(ticket, work)

    def forget(self, ticket: Ticket) -> None:
        """The item of a ticket is gone for good; what it has left is never served."""
        self._rule.forget(ticket)
        self._bound.withdraw(ticket)

    def is_pressing(self, ticket: Ticket, piece: float) -> bool:
        return self._bound.is_pressing(ticket, piece)

    def rank(self, ticket: Ticket, piece: float) -> tuple[int, float, int]:
        """Sorts tickets as their items are to be served now, the lowest first."""
        if self._bound.is_pressing(ticket, piece):
            return 0, ticket.due, ticket.serial
        if not ticket.is_deferred:
            return 1, float(ticket.serial), ticket.serial
        return 2, ticket.due, ticket.serial

    def _add(self, item: Item, ticket: Ticket) -> None:
        assert item not in self._stays, item
        stay = self._next_stay
        self._next_stay += 1
        self._stays[item] = stay
        self._items[stay] = item, ticket
        heapq.heappush(self._by_arrival, (float(ticket.serial), stay))
        heapq.heappush(self._by_due, (ticket.due, stay))
        self._shrink()

    def _first(self, heap: list[_Entry]) -> tuple[Item, Ticket] | None:
        """The first living entry; of the heap by arrival the first that has not stepped back."""
        while heap:
            entry = self._items.get(heap[0][1])
            if entry is not None and not (heap is self._by_arrival and entry[1].is_deferred):
                return entry
            heapq.heappop(heap)
        return None

    def _shrink(self) -> None:
        limit = 2 * len(self._stays) + 64
        for heap in (self._by_arrival, self._by_due):
            if len(heap) > limit:
                heap[:] = [entry for entry in heap if entry[1] in self._items]
                heapq.heapify(heap)
