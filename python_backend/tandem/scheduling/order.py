"""What decides between two requests of which neither has waited too long: the deadline, and how much work each brings."""

from __future__ import annotations

WORK_WEIGHT = 30.0
"""So many seconds earlier must a request have come to go before one that brings a second of work less.

0 is first come, first served; very large is shortest first, which is best for the mean and worse for the tail. Chosen on the Azure
traces, see docs/scheduling.md.
"""


def slo_key(*, deadline_ms: float, work_ms: float) -> float:
    """Sorts requests, the lowest first, at any time: ``deadline - now - work`` is the slack, and ``now`` is the same for all.

    ``deadline_ms``: arrival plus SLO. ``work_ms``: predicted work left, prompt and answer. A request that brings little goes first
    at little cost to the others; as it waits, those that come later have later deadlines, and its place improves.
    """
    return deadline_ms + WORK_WEIGHT * work_ms
