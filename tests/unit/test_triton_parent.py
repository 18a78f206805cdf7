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


def test_process_when_its_server_was_gone_before_it_looked_then_ends():
    nobody = "4194399"  # no such process: the parent that the arguments name is not there any more
    arguments = ["model.py", "region", "1", "1", nobody]
    # As Triton starts a stub: the pid of the server is the sixth argument of the process.
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments[2:]], stdout=subprocess.DEVNULL, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert process.wait(10) == 1
