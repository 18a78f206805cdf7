"""The reaper ends what a launcher leaves behind, and nothing while the launcher lives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tandem.server import reaper
from tandem.server.stubs import is_running

PYTHONPATH = str(Path(reaper.__file__).resolve().parents[2])


def start_reaper(server_pid: int, grace_s: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tandem.server.reaper", "tandem_test_reaper_", str(server_pid), str(grace_s)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, env={"PYTHONPATH": PYTHONPATH})


def test_reaper_when_the_launcher_goes_then_the_server_is_killed_after_the_grace_period():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as server:
        launcher = start_reaper(server.pid, 0.2)
        with pytest.raises(subprocess.TimeoutExpired):
            launcher.wait(0.5)
        assert is_running(server.pid)  # as long as the input is open
        launcher.communicate(timeout=20)
        assert server.wait(20) == -9


def test_reaper_when_the_server_has_ended_by_itself_then_it_ends_at_once():
    server = subprocess.Popen([sys.executable, "-c", ""])
    server.wait()
    launcher = start_reaper(server.pid, 600.0)
    launcher.communicate(timeout=20)
    assert launcher.returncode == 0
