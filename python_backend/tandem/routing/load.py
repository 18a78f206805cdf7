"""The load of the engines as routing sees it, and which of several engines keeps the SLO.

The figures come from outside (``tandem.orchestration.engine_load``): routing compares, it does not predict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """One engine at the moment of a decision. Times are predictions for this request, the wait in the queue included.

    ``kv_use``: share of the KV blocks that running requests take or will take; above 1 they will have to wait for each other.
    """

    num_waiting: int
    num_in_flight: int
    kv_use: float
    ttft_ms: float
    tpot_ms: float


LoadSnapshot = Mapping[str, EngineLoad]
"""Engine name -> load. An engine that is not in it is taken to keep every SLO."""


@dataclass(frozen=True, slots=True)
class Slo:
    """What the request must keep; None is "no limit"."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def broken_by(self, load: EngineLoad | None) -> str:
        """What ``load`` breaks, such as ``ttft 2300>500ms``; empty when it keeps the SLO."""
        if load is None:
            return ""
        parts = [
            f"{name} {predicted:.0f}>{limit:g}ms"
            for name, predicted, limit in (("ttft", load.ttft_ms, self.ttft_ms), ("tpot", load.tpot_ms, self.tpot_ms))
            if limit is not None and predicted > limit
        ]
        return " ".join(parts)


def first_that_keeps(candidates: Sequence[str], loads: LoadSnapshot, slo: Slo) -> tuple[str, str]:
    """The first engine of ``candidates`` that keeps the SLO, and what the preferred one breaks (empty when nothing).

    When none keeps it, the first: there is nothing to gain from a worse choice.
    """
    preferred = candidates[0]
    broken = slo.broken_by(loads.get(preferred))
    if not broken:
        return preferred, ""
    return next((engine for engine in candidates if not slo.broken_by(loads.get(engine))), preferred), broken
