"""A queue whose order changes as tickets are promoted, at O(log n) per operation."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from tandem.scheduling.aging import AgingClock, Ticket

Item = TypeVar("Item", bound=Hashable)
_Entry = tuple[float, int]
"""What sorts it, and the number of the stay in this queue that it belongs to."""


class TicketQueue(Generic[Item]):
    """Items that wait with a ticket of ``clock``. Not thread-safe.

    Three heaps: by key, by time of promotion, and the promoted by arrival. An item that is taken out stays in
    them until it comes up; when more than half of a heap is such leftovers, it is built anew, so memory follows the number waiting.
    """

    def __init__(self, clock: AgingClock) -> None:
        self._clock = clock
        self._stays: dict[Item, int] = {}
        self._items: dict[int, tuple[Item, Ticket]] = {}
        self._next_stay = 0
        self._by_key: list[_Entry] = []
        self._by_promotion: list[_Entry] = []
        self._promoted: list[_Entry] = []

    def __len__(self) -> int:
        return len(self._stays)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._stays)

    def __contains__(self, item: object) -> bool:
        return item in self._stays

    def add(self, item: Item, ticket: Ticket) -> None:
        assert item not in self._stays, item
        stay = self._next_stay
        self._next_stay += 1
        self._stays[item] = stay
        self._items[stay] = item, ticket
        heapq.heappush(self._by_key, (ticket.key, stay))
        heapq.heappush(self._by_promotion, (ticket.promote_at, stay))
        self._shrink()

    def peek(self) -> Item | None:
        """The item to serve next; promotes those whose time has come."""
        while self._by_promotion and self._by_promotion[0][0] <= self._clock.now:
            stay = heapq.heappop(self._by_promotion)[1]
            if stay in self._items:
                heapq.heappush(self._promoted, (self._items[stay][1].serial, stay))
        for heap in (self._promoted, self._by_key):
            while heap and heap[0][1] not in self._items:
                heapq.heappop(heap)
            if heap:
                return self._items[heap[0][1]][0]
        return None

    def remove(self, item: Item) -> bool:
        """Take an item out; False when it does not wait here. The ticket stays valid: the item may come back with it."""
        stay = self._stays.pop(item, None)
        if stay is None:
            return False
        del self._items[stay]
        return True

    def _shrink(self) -> None:
        limit = 2 * len(self._stays) + 64
        for heap in (self._by_key, self._by_promotion, self._promoted):
            if len(heap) > limit:
                heap[:] = [entry for entry in heap if entry[1] in self._items]
                heapq.heapify(heap)
