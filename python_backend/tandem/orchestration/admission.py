"""The queue in front of each engine: who is handed to it next, and how many it has at a time.

Triton's own priorities and queue limits do nothing for a model that returns from ``execute`` at once, so this is where requests
wait, whatever engine stands behind: its own queue stays short, and the order is ours. A request waits in its own thread::

    place = queue.join(kind, num_prompt_tokens)     raises Overloaded when too many wait
    place.wait()                                    True: in flight; False: it was cancelled
    place.leave(num_output_tokens)                  once, in every case; the next one starts
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tandem.config import SCHEDULING_POLICIES, SchedulingPolicy
from tandem.errors import Overloaded, SetupError
from tandem.scheduling.length import LengthPredictor, RequestKind
from tandem.scheduling.ticket_queue import TicketQueue
from tandem.scheduling.wait_bound import Ticket

MAX_WAIT_RATIO = 2.35
"""As in tandem.engine.waiting, on a clock of prompt and predicted answer tokens."""

_FIRST_MS_PER_TOKEN = 2.0
_PACE_WEIGHT = 0.05


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """Of each engine: ``max_in_flight`` requests at a time (its max_num_seqs is the right number), ``max_waiting`` more may wait.

    Several instances of the router share an engine's limit by a fixed split: give each its part.
    """

    max_in_flight: int = 16
    max_waiting: int = 128
    policy: SchedulingPolicy = "slo"
    slo_ttft_ms: int = 2000

    def __post_init__(self) -> None:
        for name, value, low in (
            ("max_in_flight", self.max_in_flight, 1),
            ("max_waiting", self.max_waiting, 0),
            ("slo_ttft_ms", self.slo_ttft_ms, 1),
        ):
            if value < low:
                raise SetupError(f"{name} is {value}; give a whole number of at least {low}")
        if self.policy not in SCHEDULING_POLICIES:
            raise SetupError(f"scheduling_policy is {self.policy!r}; give one of {', '.join(SCHEDULING_POLICIES)}")


@dataclass(frozen=True, slots=True)
class QueueState:
    """What a prediction needs to know. ``num_output_tokens`` is predicted; ``num_tokens``: that and the prompt together."""

    num_waiting: int
    num_in_flight: int
    max_in_flight: int
    num_tokens_in_flight: float
    num_output_tokens: float
    num_tokens: float


class AdmissionQueue:
    """The queue of one engine. Thread-safe. A decision costs O(log n) of those that wait."""

    def __init__(self, engine: str, config: AdmissionConfig, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._config = config
        self._clock_s = clock_s
        self._lock = threading.Lock()  # guards all below, and the tickets
        self._waiting: TicketQueue[Place] = TicketQueue(max_wait_ratio=MAX_WAIT_RATIO if config.policy == "slo" else math.inf)
        self._lengths = LengthPredictor()
        self._num_joined = 0
        self._num_in_flight = 0
        self._num_tokens_in_flight = 0.0
        self._ms_per_token = _FIRST_MS_PER_TOKEN
        self._last_left_s = 0.0

    @property
    def num_waiting(self) -> int:
        with self._lock:
            return len(self._waiting)

    @property
    def num_in_flight(self) -> int:
        with self._lock:
            return self._num_in_flight

    def state(self, kind: RequestKind, num_prompt_tokens: int) -> QueueState:
        """For a request that would join now."""
        with self._lock:
            num_output_tokens = self._lengths.remaining_tokens(kind)
            return QueueState(
                num_waiting=len(self._waiting),
                num_in_flight=self._num_in_flight,
                max_in_flight=self._config.max_in_flight,
                num_tokens_in_flight=self._num_tokens_in_flight,
                num_output_tokens=num_output_tokens,
                num_tokens=num_prompt_tokens + num_output_tokens,
            )

    def join(self, kind: RequestKind, num_prompt_tokens: int, slo_ttft_ms: float | None = None) -> Place:
        """Take a place, in flight at once when there is room. ``leave`` must follow.

        ``slo_ttft_ms``: of this request, None for that of the queue. Raises: Overloaded.
        """
        with self._lock:
            has_room = self._num_in_flight < self._config.max_in_flight
            if not has_room and len(self._waiting) >= self._config.max_waiting:
                raise Overloaded(f"{self._engine} is full ({self._config.max_waiting} requests wait for it); try again later")
            num_tokens = num_prompt_tokens + self._lengths.remaining_tokens(kind)
            place = Place(self, kind, num_tokens)
            target_ms = self._config.slo_ttft_ms if slo_ttft_ms is None else slo_ttft_ms
            target_work = target_ms / self._ms_per_token if self._config.policy == "slo" else math.inf
            place.ticket = self._waiting.arrive(place, self._num_joined, num_tokens, target_work=target_work)
            self._num_joined += 1
            self._start_next()
        return place

    def cancel(self, place: Place) -> None:
        """For :class:`Place`."""
        with self._lock:
            if self._waiting.remove(place):
                self._waiting.forget(place.ticket)
                place.settle(is_admitted=False)

    def leave(self, place: Place, num_output_tokens: int | None) -> None:
        """For :class:`Place`."""
        with self._lock:
            if self._waiting.remove(place):
                self._waiting.forget(place.ticket)
                place.settle(is_admitted=False)
                return
            if not place.was_admitted:
                return
            self._num_in_flight -= 1
            self._num_tokens_in_flight -= place.num_tokens
            if num_output_tokens is not None:
                self._lengths.learn(place.kind, num_output_tokens)
            self._learn_pace(place.num_tokens)
            self._start_next()

    def _start_next(self) -> None:
        while self._num_in_flight < self._config.max_in_flight:
            # A request is handed over whole, so the piece of work is all of it; the mean is near enough to find who is pressing.
            place = self._waiting.peek(self._waiting.backlog / max(len(self._waiting), 1))
            if place is None:
                return
            self._waiting.remove(place)
            self._waiting.serve(place.ticket, place.ticket.work_left)
            self._waiting.forget(place.ticket)
            self._num_in_flight += 1
            self._num_tokens_in_flight += place.num_tokens
            place.settle(is_admitted=True)

    def _learn_pace(self, num_tokens: float) -> None:
        """How long the engine takes per token when it always has work; prompt and answer tokens count alike."""
        now_s = self._clock_s()
        if len(self._waiting) > 0 and self._last_left_s > 0.0:
            pace = (now_s - self._last_left_s) * 1e3 / max(num_tokens, 1.0)
            self._ms_per_token += _PACE_WEIGHT * (pace - self._ms_per_token)
        self._last_left_s = now_s if len(self._waiting) > 0 else 0.0


class Place:
    """One request's place in one queue."""

    def __init__(self, queue: AdmissionQueue, kind: RequestKind, num_tokens: float) -> None:
        self.kind = kind
        self.ticket: Ticket  # set by the queue when it joins
        self.num_tokens = num_tokens
        self.was_admitted = False
        self._queue = queue
        self._is_settled = threading.Event()
        self._has_left = False

    def wait(self) -> bool:
        """Block until the engine may be called; False when ``cancel`` came first."""
        self._is_settled.wait()
        return self.was_admitted

    def cancel(self) -> None:
        """Give up waiting; without effect once in flight. Any thread."""
        self._queue.cancel(self)

    def leave(self, num_output_tokens: int | None = None) -> None:
        """Make room. ``num_output_tokens``: of the answer, None when it did not end by itself. Repeating it has no effect."""
        if not self._has_left:
            self._has_left = True
            self._queue.leave(self, num_output_tokens)

    def settle(self, *, is_admitted: bool) -> None:
        """For the queue, under its lock."""
        self.was_admitted = is_admitted
        self._is_settled.set()
