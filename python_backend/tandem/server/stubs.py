"""The model processes of a running tritonserver, read from /proc."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Stub:
    """One process of the Python backend. ``instance`` is Triton's name, e.g. ``slow_0_0``."""

    pid: int
    instance: str


def find_stubs(server_pid: int) -> frozenset[Stub]:
    """The stubs that are children of the server and alive (a zombie is not)."""
    stubs = set()
    for task in _read(_PROC / str(server_pid) / "task").split():
        for text in _read_text(_PROC / str(server_pid) / "task" / task / "children").split():
            stub = _stub(int(text))
            if stub is not None:
                stubs.add(stub)
    return frozenset(stubs)


def living(stubs: frozenset[Stub]) -> frozenset[Stub]:
    """Those that still run. Cheap enough to ask several times a second, unlike a search."""
    return frozenset(stub for stub in stubs if _stub(stub.pid) == stub)


def find_by_region(prefix: str) -> frozenset[Stub]:
    """All stubs whose shared memory has this prefix, also those whose server is dead. Looks at every process."""
    stubs = set()
    for text in _read(_PROC).split():
        if text.isdigit() and f"\0{prefix}" in _read_text(_PROC / text / "cmdline"):
            stub = _stub(int(text))
            if stub is not None:
                stubs.add(stub)
    return frozenset(stubs)


def is_running(pid: int) -> bool:
    """True for a process that exists and is no zombie."""
    stat = _read_text(_PROC / str(pid) / "stat")
    # The command's name stands in brackets and may hold anything; the state follows it.
    return stat.rpartition(")")[2].split()[:1] not in ([], ["Z"], ["X"])


def _stub(pid: int) -> Stub | None:
    """Arguments: program, model file, shm region, two sizes, pid of the server, two more, instance, kind of run."""
    arguments = _read_text(_PROC / str(pid) / "cmdline").split("\0")
    if not arguments[0].endswith("triton_python_backend_stub") or not is_running(pid):
        return None
    return Stub(pid, arguments[8] if len(arguments) > 8 else arguments[1])


def _read(folder: Path) -> str:
    """The names in a folder of /proc that may vanish while it is read."""
    try:
        return " ".join(path.name for path in folder.iterdir())
    except OSError:
        return ""


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
