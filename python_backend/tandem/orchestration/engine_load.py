"""Predicts TTFT and TPOT of each engine for one request, from its queue and from what earlier requests took."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from time import monotonic

from tandem.orchestration.admission import AdmissionQueue
from tandem.routing.load import EngineLoad
from tandem.scheduling.length import RequestKind
from tandem.scheduling.step_time import StepTimeModel

# What a small engine on two cores takes; the first requests correct it.
_FIRST_TTFT_MS = (30.0, 4.0, 2.0)  # fixed, per request in flight, per prompt token
_FIRST_TPOT_MS = (15.0, 3.0, 0.0)
_HALF_LIFE_S = 60.0
_MAX_SURPRISE = 4.0


class EnginePredictor:
    """Learns one engine online by recursive least squares. Thread-safe.

    ``TTFT = a + b · requests in flight + c · prompt tokens to compute``, without the wait in our queue;
    ``TPOT = d + e · requests in flight``.
    """

    def __init__(self, queue: AdmissionQueue, kv_tokens: int | None, clock: Callable[[], float] = monotonic) -> None:
        """``kv_tokens``: the engine's KV cache; None: not known, so that it never limits. ``clock``: seconds."""
        self._queue = queue
        self._kv_tokens = kv_tokens
        self._lock = threading.Lock()  # guards the two models
        self._ttft = _FadingModel(_FIRST_TTFT_MS, clock)
        self._tpot = _FadingModel(_FIRST_TPOT_MS, clock)

    def learn_ttft(self, num_computed_tokens: int, num_in_flight: int, ttft_ms: float) -> None:
        """One request's time from the call of the engine to its first token."""
        with self._lock:
            self._ttft.observe(num_computed_tokens, num_in_flight, ttft_ms)

    def learn_tpot(self, num_in_flight: int, tpot_ms: float) -> None:
        with self._lock:
            self._tpot.observe(0, num_in_flight, tpot_ms)

    def predict(self, kind: RequestKind, num_prompt_tokens: int, num_cached_tokens: int = 0) -> EngineLoad:
        """For a request of that kind that came now."""
        queue = self._queue.state(kind, num_prompt_tokens)
        num_in_flight = queue.num_in_flight + 1
        kv_use = 0.0 if self._kv_tokens is None else (queue.num_tokens_in_flight + queue.num_tokens) / self._kv_tokens
        with self._lock:
            ttft_ms = self._ttft.predict_ms(max(num_prompt_tokens - num_cached_tokens, 1), num_in_flight)
            tpot_ms = self._tpot.predict_ms(0, num_in_flight)
            prefill_ms = self._ttft.predict_ms(num_prompt_tokens, num_in_flight)
        # Without a free seat or free blocks one of the running requests must end first, and then those that came before.
        mean_ms = prefill_ms + tpot_ms * queue.num_output_tokens
        num_ahead = queue.num_waiting + (1 if kv_use > 1.0 or queue.num_in_flight >= queue.max_in_flight else 0)
        wait_ms = num_ahead * mean_ms / max(queue.num_in_flight, 1)
        return EngineLoad(queue.num_waiting, queue.num_in_flight, kv_use, wait_ms + ttft_ms, tpot_ms)


def predict_all(
    predictors: Mapping[str, EnginePredictor], kind: RequestKind, num_prompt_tokens: int, cached: Mapping[str, int]
) -> dict[str, EngineLoad]:
    """``cached``: engine -> tokens of the prompt that it probably holds."""
    return {engine: predictor.predict(kind, num_prompt_tokens, cached.get(engine, 0)) for engine, predictor in predictors.items()}


class _FadingModel:
    """A step time model that can be wrong without staying so.

    An engine that looks slow is avoided and would never show that it is fast again: while nothing is observed, what was learned
    fades back to the first guess. One stalled request says little about the next: an observation counts for at most
    ``_MAX_SURPRISE`` times what was predicted.
    """

    def __init__(self, first_ms: tuple[float, float, float], clock: Callable[[], float]) -> None:
        self._clock = clock
        self._first = StepTimeModel(*first_ms)
        self._learned = StepTimeModel(*first_ms)
        self._observed_s = clock()

    def observe(self, num_prefill_tokens: int, num_in_flight: int, observed_ms: float) -> None:
        limit_ms = _MAX_SURPRISE * self.predict_ms(num_prefill_tokens, num_in_flight)
        self._learned.observe(num_prefill_tokens, num_in_flight, min(observed_ms, limit_ms))
        self._observed_s = self._clock()

    def predict_ms(self, num_prefill_tokens: int, num_in_flight: int) -> float:
        first_ms = self._first.step_ms(num_prefill_tokens, num_in_flight)
        learned_ms = self._learned.step_ms(num_prefill_tokens, num_in_flight)
        weight = math.pow(0.5, (self._clock() - self._observed_s) / _HALF_LIFE_S)
        return first_ms + weight * (learned_ms - first_ms)
