"""What the router has decided so far, counted by labels out of closed sets; for metrics."""

from __future__ import annotations

import threading
from collections import Counter

from tandem.routing.explain import DecisionRecord

DecisionKey = tuple[str, str, str]
"""Stage, reason, path."""
StageKey = tuple[str, str]
"""Stage, outcome."""


class RouteCounts:
    """Thread-safe. Reasons are names of rules, task classes and a few words of ours; nothing a caller sends becomes a label."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._decisions: Counter[DecisionKey] = Counter()
        self._stages: Counter[StageKey] = Counter()

    def add(self, record: DecisionRecord) -> None:
        decision = record.decision
        with self._lock:
            self._decisions[decision.stage, decision.reason, decision.path.value] += 1
            for report in record.evidence.reports:
                self._stages[report.stage, report.outcome.value] += 1

    def read(self) -> tuple[dict[DecisionKey, int], dict[StageKey, int]]:
        """Totals since the start."""
        with self._lock:
            return dict(self._decisions), dict(self._stages)
