"""What ``tandem route train --data`` reads: one JSON object per line.

* A labelled prompt: ``{"prompt": "…", "fast": true, "task": "extraction"}``; ``fast`` may be a number in 0..1, ``task`` left out.
* A logged outcome: ``{"prompt": "…", "fast_ok": false, "slow_ok": true}``: which answer was acceptable. Its target is
  (1 + fast_ok - slow_ok) / 2: when both are right or both are wrong, the slow path would have gained nothing.

Optional in both: ``template`` (prompts with the same one are never split between folds; default: each its own), ``language``,
``held_out`` (true: not trained on).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.errors import SetupError
from tandem.protocol import ROUTE_TASKS

_LABEL = {"prompt", "fast", "task"}
_OUTCOME = {"prompt", "fast_ok", "slow_ok", "task"}
_OPTIONAL = {"template", "language", "held_out"}


@dataclass(frozen=True, slots=True)
class Labelled:
    """One prompt with its target in 0..1; ``gain`` is what the slow path adds (-1, 0 or 1), None for a label without outcomes."""

    prompt: str
    fast: float
    task: str | None
    group: str
    language: str
    is_held_out: bool
    gain: float | None = None
    is_fast_ok: bool | None = None


def read_labelled(path: Path) -> list[Labelled]:
    """Raises: SetupError naming file, line and remedy."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{path}: can't be read ({error}); give a JSONL file of labelled prompts") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                rows.append(parse_labelled(json.loads(line), f"line {number}"))
            except ValueError as error:
                raise SetupError(f"{path}, line {number}: {error}; see docs/route-classifier.md for the format") from None
    return rows


def parse_rows(rows: Iterable[Mapping[str, Any]]) -> list[Labelled]:
    return [parse_labelled(row, f"row {number}") for number, row in enumerate(rows)]


def parse_labelled(row: object, default_group: str) -> Labelled:
    """Raises: ValueError."""
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    known = (_OUTCOME if "fast_ok" in row else _LABEL) | _OPTIONAL
    if set(row) - known:
        raise ValueError(f"unknown keys {sorted(set(row) - known)}; known are {sorted(known)}")
    prompt, task = row.get("prompt"), row.get("task")
    if not isinstance(prompt, str) or not prompt:
        raise ValueError("prompt must be a text that is not empty")
    if task is not None and task not in ROUTE_TASKS:
        raise ValueError(f"task {task!r} is none of {', '.join(ROUTE_TASKS)}")
    fast, gain, is_fast_ok = _target(row)
    return Labelled(
        prompt=prompt,
        fast=fast,
        task=task,
        group=str(row.get("template", default_group)),
        language=str(row.get("language", "")),
        is_held_out=row.get("held_out") is True,
        gain=gain,
        is_fast_ok=is_fast_ok,
    )


def _target(row: Mapping[str, Any]) -> tuple[float, float | None, bool | None]:
    if "fast_ok" in row:
        fast_ok, slow_ok = row["fast_ok"], row.get("slow_ok")
        if not isinstance(fast_ok, bool) or not isinstance(slow_ok, bool):
            raise ValueError("fast_ok and slow_ok must be true or false")
        gain = float(slow_ok) - float(fast_ok)
        return (1.0 - gain) / 2.0, gain, fast_ok
    fast = row.get("fast")
    if not isinstance(fast, (bool, int, float)) or not 0.0 <= fast <= 1.0:
        raise ValueError("fast must be true, false or a number from 0 to 1")
    return float(fast), None, None
