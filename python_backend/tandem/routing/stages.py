"""The stages of a decision: rules, embedding classifier, LLM scorer; one interface, asked from the cheapest on.

::

    question ─► rules ──sure──► decided
                  │ unsure
                  ▼
             classifier ──sure──► decided            a stage that overruns its budget, fails or has no budget left
                  │ unsure                           is counted, and the score of the stage before stands
                  ▼
               scorer ─────────► decided
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from tandem.routing.claims import neutral
from tandem.routing.decision import Outcome, StageReport, is_probability
from tandem.routing.features import RouteFeatures
from tandem.routing.load import LoadSnapshot

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a stage says: ``score`` is its probability that the fast path suffices. See :class:`StageReport` for the rest."""

    score: float
    reason: str
    detail: str
    engine: str | None = None


class Declined(Exception):
    """A stage that does not answer, and why: ``outcome`` is NO_BUDGET, BUSY or SKIPPED."""

    def __init__(self, outcome: Outcome, detail: str = "") -> None:
        super().__init__(outcome.value)
        self.outcome = outcome
        self.detail = detail


class Cutoff:
    """Tells the work of a stage that nobody waits for it any more. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards both below
        self._is_cut = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def is_cut(self) -> bool:
        return self._is_cut

    def on_cut(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` at the cut, or now when it was cut already."""
        with self._lock:
            if not self._is_cut:
                self._callbacks.append(callback)
                return
        callback()

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class Question:
    """What a stage is asked. ``text`` is the prompt without what it says about its own routing; computed once, when needed.

    ``tenant``: whose prompt it is; what a stage keeps of it may be found by that tenant only.
    """

    def __init__(self, features: RouteFeatures, load: LoadSnapshot, tenant: str = "") -> None:
        self.features = features
        self.load = load
        self.tenant = tenant

    @cached_property
    def text(self) -> str:
        return neutral(self.features.text)


class Stage(Protocol):
    """One way to judge a prompt. Thread-safe."""

    @property
    def name(self) -> str: ...

    def ask(self, question: Question, budget_ms: float, cutoff: Cutoff) -> Opinion:
        """Judge within ``budget_ms``; stop soon after ``cutoff``.

        Raises: Declined; whatever else it raises counts as FAILED.
        """
        ...


@dataclass(frozen=True, slots=True)
class Band:
    """The scores of which a stage is not sure, both ends included; ``low`` above ``high`` is the empty band: always sure."""

    low: float
    high: float

    def holds(self, score: float) -> bool:
        return self.low <= score <= self.high


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage and its terms. ``budget_ms`` None: it runs in the caller's thread and is never cut off (the rules).

    ``threshold``: the win rate from which on its score means slow; None: that of the policy.
    """

    stage: Stage
    unsure: Band
    budget_ms: float | None = None
    threshold: float | None = None


class StageRunner:
    """Asks stages in order until one is sure. Thread-safe; owns the threads of the stages that may be cut off.

    A call that was cut off keeps its thread until it ends; when all threads are taken, stages decline as BUSY instead of piling up.
    """

    def __init__(self, stages: Sequence[PlannedStage], budget_ms: float, max_calls: int = 32) -> None:
        """``budget_ms``: of one decision, all stages together."""
        self._stages = tuple(stages)
        self._budget_ms = budget_ms
        self._seats = threading.Semaphore(max_calls)
        self._failing: set[str] = set()  # stages whose last call failed: each failure is counted, only the first is logged
        needs_pool = any(planned.budget_ms is not None for planned in self._stages)
        self._pool = ThreadPoolExecutor(max_calls, thread_name_prefix="tandem-stage") if needs_pool else None

    def run(self, question: Question) -> tuple[StageReport, ...]:
        """One report per stage that came up; the last one is SURE or INVALID unless no stage was sure."""
        start_ns = time.perf_counter_ns()
        reports: list[StageReport] = []
        for planned in self._stages:
            left_ms = self._budget_ms - (time.perf_counter_ns() - start_ns) / 1e6
            report = self._report(planned, question, left_ms)
            reports.append(report)
            if report.outcome in (Outcome.SURE, Outcome.INVALID):
                break
        return tuple(reports)

    def close(self) -> None:
        """Calls that still run are left to end by themselves."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def _report(self, planned: PlannedStage, question: Question, left_ms: float) -> StageReport:
        name, start_ns = planned.stage.name, time.perf_counter_ns()

        def ended(outcome: Outcome, opinion: Opinion | None = None, detail: str = "") -> StageReport:
            cost_ms = (time.perf_counter_ns() - start_ns) / 1e6
            if opinion is None:
                return StageReport(name, outcome, cost_ms, detail=detail)
            return StageReport(
                name, outcome, cost_ms, opinion.score, opinion.reason, opinion.detail, opinion.engine, planned.threshold
            )

        try:
            if planned.budget_ms is None:
                opinion = planned.stage.ask(question, left_ms, Cutoff())
            else:
                opinion = self._ask_within(planned.stage, question, min(planned.budget_ms, left_ms))
        except Declined as declined:
            return ended(declined.outcome, detail=declined.detail)
        except FutureTimeout:
            return ended(Outcome.OVERRAN)
        except Exception:
            if name not in self._failing:
                _log.exception("the stage %s fails; until it works again the answers of the stage before it stand", name)
            self._failing.add(name)
            return ended(Outcome.FAILED)
        self._failing.discard(name)
        if not is_probability(opinion.score):
            return ended(Outcome.INVALID)
        return ended(Outcome.UNSURE if planned.unsure.holds(opinion.score) else Outcome.SURE, opinion)

    def _ask_within(self, stage: Stage, question: Question, budget_ms: float) -> Opinion:
        """Raises: Declined; TimeoutError after the budget; whatever the stage raises."""
        if budget_ms <= 0.0:
            raise Declined(Outcome.NO_BUDGET)
        if not self._seats.acquire(blocking=False):
            raise Declined(Outcome.BUSY)
        assert self._pool is not None
        cutoff = Cutoff()
        try:
            future: Future[Opinion] = self._pool.submit(stage.ask, question, budget_ms, cutoff)
        except BaseException:
            self._seats.release()
            raise
        future.add_done_callback(lambda _: self._seats.release())
        try:
            return future.result(timeout=budget_ms / 1e3)
        except FutureTimeout:
            cutoff.cut()
            raise
