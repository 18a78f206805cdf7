"""How good a router's scores are. Pure arithmetic over arrays of one entry per prompt.

``scores``: probability that the fast path suffices. ``gain``: what the slow path adds, slow_ok - fast_ok: -1, 0 or 1. A router
that sends the share s of all prompts to the slow path, those of the lowest score first, has at s the performance gap recovered

    PGR(s) = (quality at s - quality of fast alone) / (quality of slow alone - quality of fast alone)

APGR is its mean over s from 0 to 1, and CPT(x) the least s with PGR(s) >= x (Ong et al. 2024, "RouteLLM"). Chance has 0.5.
ECE: expected calibration error over bins of equal width (Guo et al. 2017). Brier 1950: mean squared error of probabilities.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def pgr_curve(scores: Array, gain: Array) -> Array:
    """PGR after each prompt that goes slow. [n + 1]. Equal scores go in the order of the rows.

    Raises: ValueError when slow alone is no better than fast alone: there is no gap to recover.
    """
    gap = float(gain.sum())
    if gap <= 0:
        raise ValueError("the slow path is no better than the fast one on these prompts")
    order = np.argsort(scores, kind="stable")
    curve: Array = np.concatenate([[0.0], np.cumsum(gain[order])]) / gap
    return curve


def apgr(scores: Array, gain: Array) -> float:
    """Area under the PGR curve by the trapezoid rule."""
    curve = pgr_curve(scores, gain)
    return float(((curve[1:] + curve[:-1]) / 2.0).mean())


def cpt(scores: Array, gain: Array, wanted: float) -> float:
    """The least share of prompts on the slow path that recovers ``wanted`` of the gap."""
    curve = pgr_curve(scores, gain)
    return float(np.flatnonzero(curve >= wanted)[0] / (len(curve) - 1))


def accuracy(scores: Array, fast: Array, threshold: float) -> float:
    return float(((scores >= threshold) == (fast >= 0.5)).mean())


def brier(scores: Array, fast: Array) -> float:
    return float(((scores - fast) ** 2).mean())


def ece(scores: Array, fast: Array, num_bins: int = 10) -> float:
    """Mean distance of probability and frequency, weighted by how many prompts a bin holds."""
    bins = np.minimum((scores * num_bins).astype(np.int64), num_bins - 1)
    total = 0.0
    for number in np.unique(bins):
        inside = bins == number
        total += inside.mean() * abs(scores[inside].mean() - fast[inside].mean())
    return float(total)


def bootstrap_interval(
    figure: Callable[[npt.NDArray[np.int64]], float], num_rows: int, num_rounds: int = 500
) -> tuple[float, float]:
    """The middle 95 % of ``figure`` over rows drawn with replacement (Efron 1979); the same rows in every run."""
    rng = np.random.default_rng(0)
    values = [figure(rng.integers(0, num_rows, num_rows)) for _ in range(num_rounds)]
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def neighbour_scores(vectors: Array, values: Array, wanted: Array, num_neighbours: int = 20) -> Array:
    """Baseline: mean of ``values`` [n] over the nearest ``vectors`` [n, d] by cosine, for each of ``wanted`` [m, d]. [m]"""
    known = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = wanted / np.linalg.norm(wanted, axis=1, keepdims=True) @ known.T
    count = min(num_neighbours, len(values))
    nearest = np.argpartition(-similarity, count - 1, axis=1)[:, :count]
    means: Array = values[nearest].mean(axis=1)
    return means
