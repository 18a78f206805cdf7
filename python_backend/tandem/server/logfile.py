"""The server's log: one file per start, the last few kept."""

from __future__ import annotations

import re
from pathlib import Path

_NUM_KEPT = 5
_LOADED = re.compile(r"successfully loaded '([^']+)'")


def rotate(path: Path, num_kept: int = _NUM_KEPT) -> None:
    """``x.log`` becomes ``x.log.1`` and so on; the oldest goes. Creates the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in range(num_kept - 1, -1, -1):
        source = path if number == 0 else path.with_name(f"{path.name}.{number}")
        if source.exists():
            source.replace(path.with_name(f"{path.name}.{number + 1}"))


def tail(path: Path, num_lines: int = 20) -> str:
    """The last lines that say something; tables that Triton draws are left out. Empty when there is no log."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join([line for line in lines if line.strip() and line[0] not in "+|"][-num_lines:])


def loaded_models(path: Path) -> list[str]:
    """The models that are loaded so far, in their order."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return list(dict.fromkeys(_LOADED.findall(text)))


def load_errors(path: Path) -> list[str]:
    """Why models did not load, one sentence each, without the Python frames that the server appends."""
    found: dict[str, None] = {}
    for line in tail(path, 400).splitlines():
        for mark in ("Failed to create instance: ", "creating server: "):
            _, is_found, reason = line.partition(mark)
            if is_found:
                found[reason.rstrip('"').partition(r"\n\nAt:")[0].strip()] = None
    return list(found)
