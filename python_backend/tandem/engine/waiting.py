"""The order in which waiting sequences are admitted: the seam for a policy other than first come, first served."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Protocol

from tandem.engine.sequence import Sequence


class WaitingQueue(Protocol):
    """Sequences that are not running: new ones and preempted ones. A policy must not starve any of them."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Sequence]:
        """All of them, in no particular order."""
        ...

    def add(self, sequence: Sequence) -> None: ...

    def peek(self) -> Sequence | None:
        """The one to admit next. The scheduler admits it or nobody: no overtaking of a sequence that needs more room."""
        ...

    def remove(self, sequence: Sequence) -> bool:
        """Take a sequence out, admitted or ended; False when it does not wait here."""
        ...


class FirstComeFirstServed:
    """By arrival of the request. A preempted sequence keeps its place, so it stands before all that arrived later."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Sequence]] = []
        self._members: set[Sequence] = set()

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._members)

    def add(self, sequence: Sequence) -> None:
        assert sequence not in self._members
        self._members.add(sequence)
        heapq.heappush(self._heap, (sequence.request.arrival, sequence.index, sequence))

    def peek(self) -> Sequence | None:
        return self._heap[0][2] if self._heap else None

    def remove(self, sequence: Sequence) -> bool:
        if sequence not in self._members:
            return False
        self._members.remove(sequence)
        # One that ends in the middle stays in the heap until it comes up; it is never added again.
        while self._heap and self._heap[0][2] not in self._members:
            heapq.heappop(self._heap)
        return True
