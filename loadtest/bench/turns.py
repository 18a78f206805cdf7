"""Let candidates take turns and compare medians."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

from loadtest.bench import Progress


def take_turns(
    candidates: Mapping[str, Callable[[], float]], *, num_rounds: int, what: str, progress: Progress
) -> dict[str, list[float]]:
    """Measure each candidate once per round, in turn, after one round that is not counted. Returns the figures by name."""
    figures: dict[str, list[float]] = {name: [] for name in candidates}
    for round_number in range(num_rounds + 1):
        for name, measure in candidates.items():
            figure = measure()
            is_warm_up = round_number == 0
            progress(f"{what}: {name} {figure:.1f}" + (" (warm-up)" if is_warm_up else f" ({round_number} of {num_rounds})"))
            if not is_warm_up:
                figures[name].append(figure)
    return figures


def median_ratio(figures: list[float], baseline: list[float]) -> float:
    """The median of the ratios round by round, so that a slow minute of the machine weighs on both sides of one ratio."""
    return median(ours / theirs for ours, theirs in zip(figures, baseline, strict=True))
