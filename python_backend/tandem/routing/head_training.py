"""Trains the head of the route classifier on described prompts.

Regularized least squares on targets of -1 and 1 (Rifkin, Yeo and Poggio 2003): one linear system for "fast suffices" and all task
classes, solved exactly, so that equal data and libraries give equal bytes. Probabilities come from calibration on predictions that
each fold makes for groups (templates) it has not seen.

A target may lie between: for logged outcomes it is (1 + fast_ok - slow_ok) / 2, so that the expected score orders prompts by what
the slow path would gain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tandem.errors import SetupError
from tandem.routing.classifier import Described
from tandem.routing.classifier_features import NUM_BUCKETS
from tandem.routing.head import Head, OperatingPoint, Platt, embedding, scale_surface

Array = npt.NDArray[np.float64]
NUM_FOLDS = 5


@dataclass(frozen=True, slots=True)
class Settings:
    """``layers``: rows of ``Described.layer_means`` that are read; how much each kind of feature weighs; ``ridge``: the penalty."""

    layers: tuple[int, ...] = tuple(range(18))
    embedding_gain: float = 3.0
    ngram_gain: float = 0.55
    surface_gain: float = 0.05
    ridge: float = 3.0


@dataclass(frozen=True, slots=True)
class Goal:
    """How the threshold is picked: a share of prompts for the fast path, or a bound on badly served ones; neither: 0.5.

    ``grey_accuracy``: outside of the grey band the classifier must be right that often on unseen templates.
    """

    target_fast_share: float | None = None
    max_quality_loss: float | None = None
    grey_accuracy: float = 0.95

    def __post_init__(self) -> None:
        if self.target_fast_share is not None and self.max_quality_loss is not None:
            raise SetupError("give a target share or a quality loss, not both")
        for name, value in (("target fast share", self.target_fast_share), ("quality loss", self.max_quality_loss)):
            if value is not None and not 0.0 <= value <= 1.0:
                raise SetupError(f"{name}: got {value}; give a number between 0 and 1")


@dataclass(frozen=True, slots=True)
class Examples:
    """Prompts to learn from. ``fast`` [n] in 0..1; ``task`` [n] index or -1 where unknown; ``groups`` [n] stay in one fold."""

    described: Sequence[Described]
    fast: Array
    task: npt.NDArray[np.int64]
    groups: Sequence[str]


@dataclass(frozen=True, slots=True)
class Features:
    """``matrix`` [n, embedding + n-grams + surface], each kind times its gain; ``gains`` [the same width]."""

    matrix: Array
    gains: Array
    surface_mean: Array
    surface_scale: Array


@dataclass(frozen=True, slots=True)
class Unseen:
    """What models say of groups that they have not seen. ``fast`` [n], ``tasks`` [n, num_tasks]: scores, not probabilities."""

    fast: Array
    tasks: Array


def train_head(
    examples: Examples, tasks: tuple[str, ...], encoder: str, settings: Settings, goal: Goal, made_by: dict[str, Any]
) -> Head:
    """Raises: SetupError when there are too few examples to learn from."""
    _check(examples)
    features = build_features(examples.described, settings)
    targets = build_targets(examples, len(tasks))
    unseen = predict_unseen(features.matrix, targets, examples.groups, settings.ridge)
    platt = fit_platt(unseen.fast, examples.fast)
    known = examples.task >= 0
    temperature = fit_temperature(unseen.tasks[known], examples.task[known]) if known.any() else 1.0
    weights, bias = fit(features.matrix, targets, group_weights(examples.groups), settings.ridge)
    return Head(
        encoder=encoder,
        layers=settings.layers,
        tasks=tasks,
        weights=(weights * features.gains[:, None]).astype(np.float32),
        bias=bias.astype(np.float32),
        surface_mean=features.surface_mean.astype(np.float32),
        surface_scale=features.surface_scale.astype(np.float32),
        platt=Platt(round(platt.slope, 6), round(platt.offset, 6)),
        temperature=round(temperature, 6),
        operating_point=pick_operating_point(_sigmoid(platt.slope * unseen.fast + platt.offset), examples.fast, goal),
        made_by=made_by,
    )


def build_features(described: Sequence[Described], settings: Settings) -> Features:
    surface = np.stack([each.surface for each in described]).astype(np.float64)
    # As float16, which is what the head's file keeps.
    mean, scale = (
        value.astype(np.float16).astype(np.float64) for value in (surface.mean(axis=0), np.maximum(surface.std(axis=0), 1e-2))
    )
    embeddings = np.stack([embedding(each.layer_means, settings.layers) for each in described]).astype(np.float64)
    ngrams = np.zeros((len(described), NUM_BUCKETS))
    for row, each in enumerate(described):
        ngrams[row, list(each.ngrams.keys())] = list(each.ngrams.values())
    scaled = scale_surface(surface.astype(np.float32), mean.astype(np.float32), scale.astype(np.float32)).astype(np.float64)
    # Each layer has unit length; together they weigh as much as one would.
    gains = np.concatenate(
        [
            np.full(embeddings.shape[1], settings.embedding_gain / len(settings.layers) ** 0.5),
            np.full(NUM_BUCKETS, settings.ngram_gain),
            np.full(scaled.shape[1], settings.surface_gain),
        ]
    )
    return Features(np.hstack([embeddings, ngrams, scaled]) * gains, gains, mean, scale)


def build_targets(examples: Examples, num_tasks: int) -> Array:
    """[n, num_tasks + 1] from -1 to 1; all zero for a task that is unknown. The last column is "fast suffices"."""
    tasks = np.zeros((len(examples.fast), num_tasks))
    known = np.flatnonzero(examples.task >= 0)
    tasks[known] = -1.0
    tasks[known, examples.task[known]] = 1.0
    return np.column_stack([tasks, 2.0 * examples.fast - 1.0])


def group_weights(groups: Sequence[str]) -> Array:
    """Every group counts the same, however many prompts it has; one on average. [n]"""
    counts = Counter(groups)
    weights = np.array([1.0 / counts[group] for group in groups])
    scaled: Array = weights / weights.mean()
    return scaled


def fit(matrix: Array, targets: Array, row_weights: Array, ridge: float) -> tuple[Array, Array]:
    """Weights [width, outputs] and bias [outputs] of the least weighted squared error plus ``ridge`` times the squared weights.

    Solved over prompts or over features, whichever are fewer; both give the same weights.
    """
    center, mean = (np.average(values, axis=0, weights=row_weights) for values in (matrix, targets))
    roots = np.sqrt(row_weights)[:, None]
    centered, errors = (matrix - center) * roots, (targets - mean) * roots
    num_rows, width = matrix.shape
    if num_rows <= width:
        weights = centered.T @ np.linalg.solve(centered @ centered.T + ridge * np.eye(num_rows), errors)
    else:
        weights = np.linalg.solve(centered.T @ centered + ridge * np.eye(width), centered.T @ errors)
    return weights, mean - center @ weights


def predict_unseen(matrix: Array, targets: Array, groups: Sequence[str], ridge: float) -> Unseen:
    """Each fold's scores by a model trained on the other folds; a group is never split."""
    folds, row_weights = assign_folds(groups), group_weights(groups)
    scores = np.zeros_like(targets)
    for fold in range(NUM_FOLDS):
        is_unseen = folds == fold
        weights, bias = fit(matrix[~is_unseen], targets[~is_unseen], row_weights[~is_unseen], ridge)
        scores[is_unseen] = matrix[is_unseen] @ weights + bias
    return Unseen(scores[:, -1], scores[:, :-1])


def assign_folds(groups: Sequence[str]) -> npt.NDArray[np.int64]:
    """Groups in the order of their names in turn to the folds. [n]"""
    fold_of = {group: number % NUM_FOLDS for number, group in enumerate(sorted(set(groups)))}
    return np.array([fold_of[group] for group in groups], np.int64)


def fit_platt(scores: Array, targets: Array) -> Platt:
    """Slope and offset of the least log loss, by Newton's method. Raises: SetupError when a higher score does not mean "fast"."""
    slope, offset = 1.0, 0.0
    for _ in range(100):
        probabilities = _sigmoid(slope * scores + offset)
        weight = np.maximum(probabilities * (1.0 - probabilities), 1e-9)
        gradient = np.array([((probabilities - targets) * scores).sum(), (probabilities - targets).sum()])
        curvature = np.array([[(weight * scores**2).sum(), (weight * scores).sum()], [(weight * scores).sum(), weight.sum()]])
        step = np.clip(np.linalg.solve(curvature + 1e-6 * np.eye(2), gradient), -2.0, 2.0)
        slope, offset = slope - float(step[0]), offset - float(step[1])
        if np.abs(step).max() < 1e-9:
            break
    if not slope > 0.0:
        raise SetupError("the labels can't be learned from these prompts: on unseen ones the head is no better than chance")
    return Platt(slope, offset)


def fit_temperature(scores: Array, task: npt.NDArray[np.int64]) -> float:
    """The divisor of the scores with the least log loss (Guo et al. 2017, "On calibration of modern neural networks")."""

    def loss(divisor: float) -> float:
        logits = scores / divisor
        top = logits.max(axis=1)
        return float((np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top - logits[np.arange(len(task)), task]).mean())

    return float(min(np.geomspace(0.02, 10.0, 201), key=loss))


def pick_operating_point(probabilities: Array, fast: Array, goal: Goal) -> OperatingPoint:
    """From calibrated probabilities of unseen prompts [n] and their targets [n]."""
    threshold = _pick_threshold(probabilities, fast, goal)
    half_width = _grey_half_width(probabilities, fast, threshold, goal.grey_accuracy)
    low, high = max(threshold - half_width, 0.0), min(threshold + half_width, 1.0)
    return OperatingPoint(threshold=round(threshold, 4), grey_low=round(low, 4), grey_high=round(high, 4))


def _pick_threshold(probabilities: Array, fast: Array, goal: Goal) -> float:
    if goal.target_fast_share is not None:
        return float(np.quantile(probabilities, 1.0 - goal.target_fast_share))
    if goal.max_quality_loss is not None:
        order = np.argsort(-probabilities, kind="stable")
        losses = np.cumsum(1.0 - fast[order]) / len(fast)  # of all requests, those that the fast path would serve badly
        num_fast = int(np.searchsorted(losses, goal.max_quality_loss, side="right"))
        return 1.0 if num_fast == 0 else float(probabilities[order[num_fast - 1]])
    return 0.5


def _grey_half_width(probabilities: Array, fast: Array, threshold: float, accuracy: float) -> float:
    """The least width outside of which decisions are right often enough; 0.45 when no width is."""
    is_right = (probabilities >= threshold) == (fast >= 0.5)
    for half_width in np.arange(0.0, 0.451, 0.01):
        outside = np.abs(probabilities - threshold) >= half_width
        if outside.any() and is_right[outside].mean() >= accuracy:
            return float(half_width)
    return 0.45


def _sigmoid(scores: Array) -> Array:
    values: Array = 1.0 / (1.0 + np.exp(-np.clip(scores, -60.0, 60.0)))
    return values


def _check(examples: Examples) -> None:
    num_groups = len(set(examples.groups))
    if num_groups < NUM_FOLDS:
        raise SetupError(f"the training data have {num_groups} groups of prompts; give at least {NUM_FOLDS}")
    if not 0.02 <= float(examples.fast.mean()) <= 0.98:
        raise SetupError("the training data say the same of nearly every prompt; give prompts for both paths")
