"""One module per benchmark. Each has ``run(quick: bool, progress: Progress) -> dict`` and is started by ``tandem bench NAME``.

Ratios are taken inside one run: the candidates take turns (A B A B …) and medians are compared, since the speed of a machine
drifts more between runs than the candidates differ.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]
"""Shows one line of what is going on to a person."""

NAMES: tuple[str, ...] = ("engine", "prefix", "kv", "cancel", "schedule", "guided")
