"""The stages of the router in their order, and what happens when none is sure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from tandem.routing.decision import RouteDecision, Stage, Verdict
from tandem.routing.features import RouteFeatures
from tandem.types import Path

_DEFAULT = "default"


class RoutingPolicy:
    """Decides the path of each request. Immutable and thread-safe."""

    def __init__(self, stages: Sequence[Stage], *, default_engine: str, paths: Mapping[str, Path]) -> None:
        """``paths``: engine name -> path it belongs to, for every engine a stage may name."""
        self._stages = tuple(stages)
        self._default = Verdict(default_engine, _DEFAULT, _DEFAULT)
        self._paths = dict(paths)

    @property
    def paths(self) -> Mapping[str, Path]:
        """Engine name -> path, for every engine that can be chosen."""
        return self._paths

    def decide(self, features: RouteFeatures) -> RouteDecision:
        start_ns = time.perf_counter_ns()
        stage, verdict = self._first_sure(features)
        return RouteDecision(
            path=self._paths[verdict.engine],
            engine=verdict.engine,
            stage=stage,
            reason=verdict.reason,
            detail=verdict.detail,
            cost_ms=(time.perf_counter_ns() - start_ns) / 1e6,
            score=verdict.score,
        )

    def _first_sure(self, features: RouteFeatures) -> tuple[str, Verdict]:
        for stage in self._stages:
            verdict = stage.decide(features)
            if verdict is not None:
                return stage.name, verdict
        return "rules", self._default
