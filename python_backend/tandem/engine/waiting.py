"""The order in which sequences get their prompt computed: the seam for a policy."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Protocol

from tandem.config import SchedulingPolicy
from tandem.engine.sequence import Sequence
from tandem.scheduling.aging import AgingClock, Ticket
from tandem.scheduling.length import LengthPredictor, RequestKind
from tandem.scheduling.order import slo_key
from tandem.scheduling.step_time import StepTimeModel
from tandem.scheduling.ticket_queue import TicketQueue

Rank = tuple[float, ...]
"""Sorts sequences of one queue as they are to be served now, the lowest first."""


class WaitingQueue(Protocol):
    """Sequences that are not running, new ones and preempted ones, and the rank of those that run with a part of their prompt.

    A policy must not starve any of them. It hears of everything that happens to a sequence, so that it can learn.
    """

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

    def rank(self, sequence: Sequence) -> Rank:
        """Of a sequence that waits here or was admitted from here."""
        ...

    def note_scheduled(self, sequence: Sequence, num_tokens: int) -> None:
        """A step is to compute these tokens of a sequence."""
        ...

    def note_ended(self, sequence: Sequence, *, is_complete: bool) -> None:
        """A sequence is gone for good; ``is_complete`` is False when it was cancelled or failed."""
        ...

    def note_step(self, num_prefill_tokens: int, num_decode_tokens: int, step_ms: float) -> None:
        """A step has taken this long."""
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

    def rank(self, sequence: Sequence) -> Rank:
        return sequence.request.arrival, sequence.index

    def note_scheduled(self, sequence: Sequence, num_tokens: int) -> None:
        pass

    def note_ended(self, sequence: Sequence, *, is_complete: bool) -> None:
        pass

    def note_step(self, num_prefill_tokens: int, num_decode_tokens: int, step_ms: float) -> None:
        pass


class SloOrder:
    """Least predicted work first, weighed against the deadline, with the bound of :mod:`tandem.scheduling.aging`.

    Work on the aging clock is prompt tokens: they are what the waiting ones share, since decodes run in every step. A preempted
    sequence is promoted at once; it has the least left.
    """

    def __init__(
        self,
        *,
        slo_ttft_ms: float,
        tokens_per_step: int,
        clock_s: Callable[[], float] = perf_counter,
        lengths: LengthPredictor | None = None,
        steps: StepTimeModel | None = None,
    ) -> None:
        """``slo_ttft_ms``: wanted time to the first token. ``tokens_per_step``: the engine's budget. ``clock_s``: any epoch."""
        self._slo_ttft_ms = slo_ttft_ms
        self._tokens_per_step = tokens_per_step
        self._clock_s = clock_s
        self._lengths = LengthPredictor() if lengths is None else lengths
        self._steps = StepTimeModel() if steps is None else steps
        self._aging = AgingClock()
        self._queue: TicketQueue[Sequence] = TicketQueue(self._aging)
        self._tickets: dict[Sequence, Ticket] = {}

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)

    def add(self, sequence: Sequence) -> None:
        before = self._tickets.get(sequence)
        if before is not None:
            self._aging.withdraw(before)
        was_admitted = before is not None or sequence.num_output_tokens > 0
        ticket = self._aging.arrive(sequence.request.arrival, sequence.num_tokens, self._key(sequence), is_promoted=was_admitted)
        self._tickets[sequence] = ticket
        self._queue.add(sequence, ticket)

    def peek(self) -> Sequence | None:
        return self._queue.peek()

    def remove(self, sequence: Sequence) -> bool:
        return self._queue.remove(sequence)

    def rank(self, sequence: Sequence) -> Rank:
        ticket = self._tickets.get(sequence)
        return (0, sequence.request.arrival, 0) if ticket is None else self._aging.rank(ticket)

    def note_scheduled(self, sequence: Sequence, num_tokens: int) -> None:
        ticket = self._tickets.get(sequence)
        if ticket is not None and ticket.work_left > 0.0:
            # What was found in the prefix cache is served without being computed.
            num_left = sequence.num_tokens - sequence.num_computed_tokens - num_tokens
            self._aging.serve(ticket, ticket.work_left - num_left)

    def note_ended(self, sequence: Sequence, *, is_complete: bool) -> None:
        ticket = self._tickets.pop(sequence, None)
        if ticket is not None:
            self._aging.withdraw(ticket)
        if is_complete:
            self._lengths.learn(_kind(sequence), max(sequence.num_output_tokens, 1))

    def note_step(self, num_prefill_tokens: int, num_decode_tokens: int, step_ms: float) -> None:
        self._steps.observe(num_prefill_tokens, num_decode_tokens, step_ms)

    def _key(self, sequence: Sequence) -> float:
        num_left = self._lengths.remaining_tokens(_kind(sequence), sequence.num_output_tokens)
        prefill_ms = self._steps.prefill_ms(sequence.num_tokens, self._tokens_per_step)
        # Decodes share their steps with others, so an answer costs the others its own tokens and not the whole steps.
        answer_ms = self._steps.coefficients_ms[1] * num_left * sequence.num_seats
        return slo_key(deadline_ms=self._clock_s() * 1e3 + self._slo_ttft_ms, work_ms=prefill_ms + answer_ms)


def _kind(sequence: Sequence) -> RequestKind:
    return RequestKind("", sequence.request.max_tokens)


def make_waiting_queue(policy: SchedulingPolicy, *, slo_ttft_ms: float, tokens_per_step: int) -> WaitingQueue:
    """The queue that a configuration names."""
    if policy == "fcfs":
        return FirstComeFirstServed()
    return SloOrder(slo_ttft_ms=slo_ttft_ms, tokens_per_step=tokens_per_step)
