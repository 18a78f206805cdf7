"""The texts that calibration sees, by kind of task, and the folders in which TensorRT-LLM's quantize.py looks for them."""

from __future__ import annotations

import json
from pathlib import Path

from build_engines.spec import Calibration
from tandem.errors import SetupError

_GENERAL_FILE = Path(__file__).resolve().parent / "calibration.json"
_TASKS_FILE = Path(__file__).resolve().parent / "calibration_tasks.json"


def calibration_texts(kind: Calibration) -> tuple[str, ...]:
    """``general`` is what the CPU engines are calibrated with; the others add texts of their tasks in front of it."""
    general = tuple(json.loads(_GENERAL_FILE.read_text(encoding="utf-8")))
    if kind is Calibration.GENERAL:
        return general
    tasks = json.loads(_TASKS_FILE.read_text(encoding="utf-8"))
    return (*tasks[kind.value], *general)


def write_calibration_folders(folder: Path) -> tuple[Path, ...]:
    """One data set per kind: ``<kind>/train.jsonl`` with the column ``text``. Raises: SetupError when it cannot be written."""
    written = []
    for kind in Calibration:
        path = folder / kind.value / "train.jsonl"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = (json.dumps({"text": text}, ensure_ascii=False) for text in calibration_texts(kind))
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        except OSError as error:
            raise SetupError(f"{path} cannot be written ({error.strerror})") from error
        written.append(path)
    return tuple(written)
