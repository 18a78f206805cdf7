"""A model process ends when its server is killed, even while one of its threads waits for ever."""

from __future__ import annotations

import subprocess
import sys
import time

from tandem.server.stubs import is_running

CHILD = """
import threading
from tandem.triton import parent
parent._PERIOD_S = parent._GRACE_S = 0.02
parent.exit_with_parent()
print("ready", flush=True)
threading.Event().wait()
"""
SERVER = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""


def test_process_when_its_server_is_killed_then_ends():
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert server.stdout is not None
    with server.stdout:
        child = int(server.stdout.readline())
        assert is_running(child)
        server.kill()
        server.wait()
        deadline = time.monotonic() + 10
        while is_running(child):
            assert time.monotonic() < deadline
            time.sleep(0.01)
