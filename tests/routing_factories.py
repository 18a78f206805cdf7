"""Policies and stages for tests of routing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tandem.routing.features import RouteFeatures, extract_features
from tandem.routing.load import Slo
from tandem.routing.policy import PolicyTerms, RoutingPolicy
from tandem.routing.settings import Settings
from tandem.routing.stages import Band, Cutoff, Opinion, PlannedStage, Question
from tandem.types import Path

PATHS = {"fast_int4": Path.FAST, "fast_int8": Path.FAST, "slow": Path.SLOW}
NEVER = Band(1.0, 0.0)
ALWAYS = Band(0.0, 1.0)


def features_of(text: str = "Hello", **fields: Any) -> RouteFeatures:
    return extract_features(text, **{"num_prompt_tokens": 10, "num_turns": 1, **fields})


def terms_of(**changes: Any) -> PolicyTerms:
    explicit = {"fast": "fast_int4", "slow": "slow"}
    return PolicyTerms(**{"paths": PATHS, "explicit": explicit, "default": "fast_int4", "slo": Slo(), **changes})


@dataclass
class ScriptedStage:
    """Gives ``score`` after ``delay_s``; ``error`` is raised instead. ``was_cut`` is set when it was cut off."""

    name: str = "scripted"
    score: Any = 0.9
    delay_s: float = 0.0
    error: Exception | None = None
    engine: str | None = None
    release: threading.Event | None = None
    calls: list[Question] = field(default_factory=list)
    was_cut: threading.Event = field(default_factory=threading.Event)
    on_ask: Callable[[], None] = lambda: None

    def ask(self, question: Question, budget_ms: float, cutoff: Cutoff) -> Opinion:
        self.calls.append(question)
        cutoff.on_cut(self.was_cut.set)
        self.on_ask()
        time.sleep(self.delay_s)
        if self.release is not None:
            self.release.wait(20)
        if self.error is not None:
            raise self.error
        return Opinion(self.score, "reason", f"{self.name}", self.engine)


def policy_of(*stages: PlannedStage, budget_ms: float = 200.0, **terms: Any) -> RoutingPolicy:
    return RoutingPolicy(terms_of(**terms), stages, Settings(budget_ms=budget_ms))


def in_thread(stage: ScriptedStage, unsure: Band = NEVER, threshold: float | None = None) -> PlannedStage:
    """Runs in the caller's thread, as the rules do."""
    return PlannedStage(stage, unsure, None, threshold)


def in_pool(stage: ScriptedStage, unsure: Band = NEVER, budget_ms: float = 50.0) -> PlannedStage:
    return PlannedStage(stage, unsure, budget_ms)


def outcomes(reports: Sequence[Any]) -> list[tuple[str, str]]:
    return [(report.stage, report.outcome.value) for report in reports]
