"""The order in which sequences get their prompt computed: the seam for a policy."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import Protocol

from tandem.config import SchedulingPolicy
from tandem.engine.sequence import Sequence
from tandem.scheduling.length import LengthPredictor, RequestKind
from tandem.scheduling.ticket_queue import TicketQueue
from tandem.scheduling.wait_bound import Ticket

Rank = tuple[float, ...]
"""Sorts sequences of one queue as they are to be served now, the lowest first."""

MAX_WAIT_RATIO = 2.35
"""To the first token, against FCFS, on a clock of prompt tokens. In seconds 3 is promised: steps that decode more take longer."""

_FIRST_MS_PER_TOKEN = 2.0
_PACE_WEIGHT = 0.02


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

    def is_pressing(self, sequence: Sequence) -> bool:
        """Whether it has waited so long that room is to be made for it at the cost of prompts that are not pressing."""
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

    def is_pressing(self, sequence: Sequence) -> bool:
        return False

    def note_scheduled(self, sequence: Sequence, num_tokens: int) -> None:
        pass

    def note_ended(self, sequence: Sequence, *, is_complete: bool) -> None:
        pass

    def note_step(self, num_prefill_tokens: int, num_decode_tokens: int, step_ms: float) -> None:
        pass


class SloOrder:
    """In order of arrival, but the largest step back when others would miss the target, within a bound on every wait.

    See :mod:`tandem.scheduling.deferral` and :mod:`tandem.scheduling.wait_bound`. Work on the clock is prompt tokens: they are what
    the waiting ones share, since decodes run in every step. The predicted answer counts towards who is largest.
    """

    def __init__(
        self,
        *,
        slo_ttft_ms: float,
        tokens_per_step: int,
        lengths: LengthPredictor | None = None,
    ) -> None:
        """``slo_ttft_ms``: wanted time to the first token. ``tokens_per_step``: the engine's budget."""
        self._slo_ttft_ms = slo_ttft_ms
        self._tokens_per_step = tokens_per_step
        self._lengths = LengthPredictor() if lengths is None else lengths
        self._ms_per_token = _FIRST_MS_PER_TOKEN  # of a prompt, beside what is decoded in the same steps
        self._queue: TicketQueue[Sequence] = TicketQueue(max_wait_ratio=MAX_WAIT_RATIO)
        self._tickets: dict[Sequence, Ticket] = {}

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)

    def add(self, sequence: Sequence) -> None:
        ticket, has_answered = self._tickets.get(sequence), sequence.num_output_tokens > 0
        if ticket is not None:
            self._queue.come_back(sequence, ticket, sequence.num_tokens, has_answered=has_answered)
            return
        num_left = self._lengths.remaining_tokens(_kind(sequence), sequence.num_output_tokens) * sequence.num_seats
        self._tickets[sequence] = self._queue.arrive(
            sequence,
            sequence.request.arrival,
            sequence.num_tokens,
            # A sibling that forked off another has no ticket until it is preempted.
            target_work=math.inf if has_answered else self._slo_ttft_ms / self._ms_per_token,
            # Decodes share their steps with others, so a token of an answer costs about as much as one of a prompt.
            other_size=num_left,
        )

    def peek(self) -> Sequence | None:
        return self._queue.peek(self._tokens_per_step)

    def remove(self, sequence: Sequence) -> bool:
        return self._queue.remove(sequence)

    def rank(self, sequence: Sequence) -> Rank:
        ticket = self._tickets.get(sequence)
        return (0, sequence.request.arrival, 0) if ticket is None else self._queue.rank(ticket, self._tokens_per_step)

    def is_pressing(self, sequence: Sequence) -> bool:
        ticket = self._tickets.get(sequence)
        return ticket is not None and self._queue.is_pressing(ticket, self._tokens_per_step)

    def note_scheduled(self, sequence: Sequence, num_tokens: int) -> None:
        ticket = self._tickets.get(sequence)
        if ticket is not None and ticket.work_left > 0.0:
            # What was found in the prefix cache is served without being computed.
            num_left = sequence.num_tokens - sequence.num_computed_tokens - num_tokens
            self._queue.serve(ticket, ticket.work_left - num_left)

    def note_ended(self, sequence: Sequence, *, is_complete: bool) -> None:
        ticket = self._tickets.pop(sequence, None)
        if ticket is not None:
            self._queue.forget(ticket)
        if is_complete:
            self._lengths.learn(_kind(sequence), max(sequence.num_output_tokens, 1))

    def note_step(self, num_prefill_tokens: int, num_decode_tokens: int, step_ms: float) -> None:
        if num_prefill_tokens > 0 and num_prefill_tokens + num_decode_tokens == self._tokens_per_step:
            self._ms_per_token += _PACE_WEIGHT * (step_ms / num_prefill_tokens - self._ms_per_token)


def _kind(sequence: Sequence) -> RequestKind:
    return RequestKind("", sequence.request.max_tokens)


def make_waiting_queue(policy: SchedulingPolicy, *, slo_ttft_ms: float, tokens_per_step: int) -> WaitingQueue:
    """The queue that a configuration names."""
    if policy == "fcfs":
        return FirstComeFirstServed()
    return SloOrder(slo_ttft_ms=slo_ttft_ms, tokens_per_step=tokens_per_step)
