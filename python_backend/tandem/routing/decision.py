"""Where a request goes, why, and what finding out has cost.

Two numbers rule a decision. The **score** is a stage's probability that the fast path suffices. The **win rate** is what is left to
1: the probability that only the slow path will do. A request goes slow when its win rate is **at or above the threshold**; so a
higher threshold never sends more to the slow path, and ``tandem@0.42`` means what RouteLLM's ``router-mf-0.42`` means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from tandem.types import Path

# Scores come from floats of 32 bits; beyond this they differ only by noise, and "equal" needs a meaning.
_DECIMALS = 6


def win_rate(score: float) -> float:
    """The probability that only the slow path suffices, to six decimals, so that it can equal a threshold."""
    return round(1.0 - score, _DECIMALS)


def goes_slow(score: float, threshold: float) -> bool:
    """Equal to the threshold counts as slow: where it can't be told apart, the stronger model answers."""
    return win_rate(score) >= round(threshold, _DECIMALS)


def is_probability(value: object) -> bool:
    """A finite number from 0 to 1. Nothing else may be compared with a threshold: NaN would pass for "false" each time."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and 0.0 <= value <= 1.0


class Outcome(str, Enum):
    """How asking one stage ended. All but SURE and UNSURE leave the answer of the stage before."""

    SURE = "sure"
    UNSURE = "unsure"  # the score lies in the grey band: the next stage is asked
    INVALID = "invalid"  # the score is no probability: the request goes slow
    OVERRAN = "overran"  # cut off at its budget
    NO_BUDGET = "no_budget"  # not asked: what is left of the budget can't be enough
    BUSY = "busy"  # not asked: earlier calls that were cut off still run
    FAILED = "failed"
    SKIPPED = "skipped"  # not asked: there is nothing that it could judge


@dataclass(frozen=True, slots=True)
class StageReport:
    """What one stage has said. ``reason`` is a code (metrics), ``detail`` what it saw (ASCII, no text of a user).

    ``score`` is None unless the outcome is SURE or UNSURE. ``engine``: the one it would choose on its side, if it knows.
    ``threshold``: of the stage, where it has one of its own.
    """

    stage: str
    outcome: Outcome
    cost_ms: float
    score: float | None = None
    reason: str = ""
    detail: str = ""
    engine: str | None = None
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class RouteDecision:
    """The outcome for one request; the same in every response, in metrics and in the response headers.

    ``score`` and ``threshold`` are None where the decision did not depend on them.
    """

    path: Path
    engine: str
    stage: str
    reason: str
    detail: str
    cost_ms: float
    score: float | None = None
    threshold: float | None = None

    @property
    def line(self) -> str:
        """One readable line, safe in a header: ``rules:task=extraction -> fast/fast_int4 (0.05 ms)``."""
        return f"{self.stage}:{self.detail} -> {self.path.value}/{self.engine} ({self.cost_ms:.2f} ms)"
