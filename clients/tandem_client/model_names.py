"""The names that ``model`` may have, and what they ask of the router."""

from __future__ import annotations

import re
from dataclasses import dataclass

PATH_BY_MODEL = {"tandem": "auto", "tandem-fast": "fast", "tandem-slow": "slow"}
MODELS = tuple(PATH_BY_MODEL)
HINT = f"use one of {', '.join(MODELS)}, or tandem@0.42 for a threshold of your own from 0 to 1"
_WITH_THRESHOLD = re.compile(r"tandem@(?P<threshold>(?:0|1|0?\.\d{1,6}|0\.\d{1,6}|1\.0{1,6}))")


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """``path`` is auto, fast or slow. ``threshold``: from this probability on that only the slow path will do, it answers.

    ``base`` is the name without the threshold, out of a closed set.
    """

    base: str
    path: str
    threshold: float | None = None


def read_model(name: str) -> ModelChoice | None:
    """None for a name that is none of ours."""
    if name in PATH_BY_MODEL:
        return ModelChoice(name, PATH_BY_MODEL[name])
    match = _WITH_THRESHOLD.fullmatch(name)
    return None if match is None else ModelChoice("tandem", "auto", float(match["threshold"]))
