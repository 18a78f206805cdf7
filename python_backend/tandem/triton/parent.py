"""A model process must not outlive its server.

Triton's stub looks after that itself, but one that is in the middle of a call to a server that was killed waits for ever in it
(seen with Triton 2.51: a response being sent). The server's own cleaning up needs a launcher that is still alive.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

_PERIOD_S = 1.0
_GRACE_S = 3.0
# Arguments of a stub: program, model file, name of the shared memory, two sizes, pid of the server, and more.
_SERVER_PID_ARGUMENT = 5


def exit_with_parent() -> None:
    """End this process a few seconds after its server has gone; call once per model process, from ``initialize``."""
    threading.Thread(target=_watch, args=(_server_pid(),), name="tandem-parent", daemon=True).start()


def _server_pid() -> int:
    """Who the parent should be. Asking for the parent is not enough: a server killed early on is gone before this is called."""
    arguments = Path("/proc/self/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    text = arguments[_SERVER_PID_ARGUMENT] if len(arguments) > _SERVER_PID_ARGUMENT else ""
    return int(text) if text.isdigit() else os.getppid()


def _watch(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_PERIOD_S)
    time.sleep(_GRACE_S)  # for the stub to end in its own way
    os._exit(1)
