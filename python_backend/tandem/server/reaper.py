"""The last will of a launcher: a small process that ends a tritonserver and its model processes when the launcher is gone.

The kernel tells tritonserver (see ``triton_process``), and a model process looks after itself as a rule. But one that is in the
middle of a call to a server that has gone waits in it for ever and holds the interpreter's lock (seen with Triton 2.51 while a
model loads and while a response is sent), so nothing inside that process can end it.

``python -m tandem.server.reaper SHM_PREFIX SERVER_PID GRACE_S`` waits for the end of its standard input, which the launcher holds
open.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

from tandem.server.stubs import find_by_region, is_running

_PERIOD_S = 0.2


def main(shm_prefix: str, server_pid: int, grace_s: float) -> None:
    """Returns when nothing of the server is left."""
    sys.stdin.buffer.read()
    deadline = time.monotonic() + grace_s
    while (left := _left(shm_prefix, server_pid)) and time.monotonic() < deadline:
        time.sleep(_PERIOD_S)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _left(shm_prefix: str, server_pid: int) -> set[int]:
    server = {server_pid} if is_running(server_pid) else set()
    return server | {stub.pid for stub in find_by_region(shm_prefix)}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
