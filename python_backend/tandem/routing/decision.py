"""Where a request goes, why, and what finding out has cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tandem.routing.features import RouteFeatures
from tandem.types import Path


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one stage says when it is sure. ``reason`` is a code (metrics), ``detail`` what it saw (ASCII, no user text).

    ``score`` is the stage's probability that the fast path is good enough, None where it has none.
    """

    engine: str
    reason: str
    detail: str
    score: float | None = None


class Stage(Protocol):
    """One way to decide. Stages are asked in order; the first that is sure decides."""

    @property
    def name(self) -> str: ...

    def decide(self, features: RouteFeatures) -> Verdict | None:
        """A verdict, or None when this stage is not sure. Thread-safe; raises nothing a prompt could cause."""
        ...


@dataclass(frozen=True, slots=True)
class RouteDecision:
    """The outcome for one request; the same in every response, in metrics and in the response headers."""

    path: Path
    engine: str
    stage: str
    reason: str
    detail: str
    cost_ms: float
    score: float | None = None

    @property
    def line(self) -> str:
        """One readable line, safe in a header: ``rules:task=extraction -> fast/fast_int4 (0.05 ms)``."""
        return f"{self.stage}:{self.detail} -> {self.path.value}/{self.engine} ({self.cost_ms:.2f} ms)"
