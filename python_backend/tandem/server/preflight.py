"""What must be right on this machine before tritonserver is started; each fault is one sentence with its remedy."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from tandem.errors import SetupError

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (POSIX shared memory, the only place Triton's Python backend can use)
# Per model process 1 MiB at the start; the rest is room for prompts and answers in flight.
_MIN_SHARED_MEMORY_MIB = 32


def check_ports(address: str, ports: Mapping[str, int]) -> None:
    """``ports``: option name -> port. Raises: SetupError naming port and option."""
    seen: dict[int, str] = {}
    for option, port in ports.items():
        if port in seen:
            raise SetupError(f"{seen[port]} and {option} are both {port}; give each its own port.")
        seen[port] = option
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free for a server
            try:
                probe.bind((address, port))
            except PermissionError:
                raise SetupError(f"Port {port} needs root; choose one above 1023 with {option}.") from None
            except OSError:
                raise SetupError(f"Port {port} on {address} is taken; stop what uses it or choose another with {option}.") from None


def check_shared_memory(folder: Path = SHARED_MEMORY) -> None:
    """Raises: SetupError."""
    try:
        status = os.statvfs(folder)
    except OSError:
        raise SetupError(f"{folder} does not exist, but Triton's Python backend needs it; mount a tmpfs there.") from None
    free_mib = status.f_bavail * status.f_frsize // 2**20
    total_mib = status.f_blocks * status.f_frsize // 2**20
    if free_mib < _MIN_SHARED_MEMORY_MIB:
        what = "too small" if total_mib < _MIN_SHARED_MEMORY_MIB else "full"
        raise SetupError(
            f"{folder} is {what} ({free_mib} of {total_mib} MiB free, {_MIN_SHARED_MEMORY_MIB} needed); "
            "free some, or in a container start it with --shm-size=256m."
        )
    if not os.access(folder, os.W_OK):
        raise SetupError(f"{folder} is not writable for this user; mount it with mode 1777.")


def remove_stale_regions(prefix: str, folder: Path = SHARED_MEMORY) -> None:
    """Remove shared memory of servers that are dead. Names are ``<prefix><pid of the launcher>_...``."""
    for path in folder.glob(f"{prefix}*"):
        pid = path.name[len(prefix) :].partition("_")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            path.unlink(missing_ok=True)
