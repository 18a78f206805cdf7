"""What the router decides, as counters of Triton's metrics."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from tandem.orchestration.route_counts import RouteCounts

_log = logging.getLogger(__name__)

# Family -> (help, labels in the order of the keys of RouteCounts)
_DECISIONS = "tandem_route_decisions_total"
_STAGES = "tandem_route_stage_total"
_FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    _DECISIONS: ("Decisions of the router by the stage and the reason that made them", ("stage", "reason", "path")),
    _STAGES: ("Stages that were asked, by how it ended", ("stage", "outcome")),
}


class RouteMetrics:
    """Adds what was counted since the last time, every ``period_s``, from a thread of its own: each costs a call to the server.

    Owns families and metrics: Triton 2.51 drops a metric whose family is collected as garbage.
    """

    def __init__(self, model: str, counts: RouteCounts, period_s: float) -> None:
        self._model = model
        self._counts = counts
        self._period_s = period_s
        self._families: dict[str, Any] = {
            name: pb_utils.MetricFamily(name=name, description=text, kind=pb_utils.MetricFamily.COUNTER)
            for name, (text, _) in _FAMILIES.items()
        }
        self._metrics: dict[tuple[str, tuple[str, ...]], Any] = {}
        self._shown: dict[tuple[str, tuple[str, ...]], int] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tandem-route-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop counting; the metrics end with this object."""
        self._closing.set()
        self._thread.join()
        self._metrics.clear()
        self._families.clear()

    def _run(self) -> None:
        while not self._closing.wait(self._period_s):
            self._update()

    def _update(self) -> None:
        try:
            decisions, stages = self._counts.read()
            self._add(_DECISIONS, decisions)
            self._add(_STAGES, stages)
        except pb_utils.TritonModelException:
            _log.exception("the metrics could not be updated; the next try follows")

    def _add(self, family: str, totals: Mapping[Any, int]) -> None:
        for values, total in totals.items():
            key = (family, values)
            if key not in self._metrics:
                labels = dict(zip(_FAMILIES[family][1], values, strict=True))
                self._metrics[key] = self._families[family].Metric(labels={"model": self._model, **labels})
            more = total - self._shown.get(key, 0)
            if more:
                self._metrics[key].increment(more)
                self._shown[key] = total
