"""The supervisor over a fake server: first start, restarts with growing pauses, dead model processes, stop at any time."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tandem.errors import SetupError
from tandem.server import supervisor as supervisor_module
from tandem.server.stubs import Stub
from tandem.server.supervisor import ServerState, Supervisor, SupervisorConfig


class FakeServer:
    """Plays TritonServer: ``die`` and ``lose`` are what can happen to it; starts listed in ``broken_starts`` do not come up."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(log_file="triton.log")
        self.num_starts = 0
        self.broken_starts: set[int] = set()
        self.start_error: SetupError | None = None
        self.is_slow = False
        self.alive = False
        self.pids = 100
        self.living: set[Stub] = set()
        self.stops: list[float | None] = []

    def start(self) -> None:
        assert not self.alive
        if self.start_error is not None:
            raise self.start_error
        self.num_starts += 1
        self.alive = self.num_starts not in self.broken_starts
        self.pids += 10
        self.living = {Stub(self.pids, "slow_0_0"), Stub(self.pids + 1, "router_0_0")}

    def is_running(self) -> bool:
        return self.alive

    def is_ready(self) -> bool:
        return self.alive and not self.is_slow

    def exit_code(self) -> int | None:
        return None if self.alive else -9

    def stubs(self) -> frozenset[Stub]:
        return frozenset(self.living) if self.alive else frozenset()

    def still_running(self, stubs: frozenset[Stub]) -> frozenset[Stub]:
        return stubs & self.stubs()

    def stop(self, grace_s: float | None = None) -> None:
        self.stops.append(grace_s)
        self.alive = False

    def loaded_models(self) -> list[str]:
        return ["router", "slow"] if self.alive else []

    def load_errors(self) -> list[str]:
        return ["model slow: no such folder"] if not self.alive else []

    def lose(self, instance: str) -> None:
        self.living = {stub for stub in self.living if stub.instance != instance}


@contextmanager
def supervised(server: FakeServer, **config):
    events: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor_module, "_POLL_S", 0.005)
        values = {"start_timeout_s": 5.0, "first_backoff_s": 0.01, "max_backoff_s": 0.04, **config}
        supervisor = Supervisor(server, SupervisorConfig(**values), on_event=events.append)
        try:
            yield supervisor, events
        finally:
            supervisor.stop(0.0)


def restarted(supervisor: Supervisor, count: int) -> None:
    deadline = time.monotonic() + 5
    while not (supervisor.num_restarts >= count and supervisor.ready()):
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_start_when_all_is_well_then_ready_until_stop():
    server = FakeServer()
    with supervised(server) as (supervisor, _):
        assert supervisor.state is ServerState.STOPPED
        supervisor.start()
        assert supervisor.ready()
        supervisor.stop(3.0)
        assert supervisor.state is ServerState.STOPPED
        assert not supervisor.ready()
    assert server.stops == [3.0]


def test_start_when_models_load_then_told_once_each():
    lines: list[str] = []
    supervisor = Supervisor(FakeServer(), on_progress=lines.append)
    supervisor.start()
    supervisor.stop()
    assert lines == ["router is loaded", "slow is loaded"]


def test_server_when_it_dies_then_started_again_and_not_ready_meanwhile():
    server = FakeServer()
    with supervised(server) as (supervisor, events):
        supervisor.start()
        server.is_slow = True
        server.alive = False
        assert supervisor.wait_until(ServerState.RECOVERING, 5)
        assert not supervisor.ready()
        server.is_slow = False
        restarted(supervisor, 1)
    assert "code -9" in events[0]
    assert "ready again" in events[-1]


def test_model_process_when_it_dies_then_named_and_the_server_is_killed_and_started_again():
    server = FakeServer()
    with supervised(server) as (supervisor, events):
        supervisor.start()
        server.lose("slow_0_0")
        restarted(supervisor, 1)
        assert server.stops == [0.0]
    assert "slow_0_0" in events[0]


def test_restart_when_it_fails_again_and_again_then_pauses_grow_to_their_limit():
    server = FakeServer()
    server.broken_starts = {2, 3, 4, 5}
    with supervised(server) as (supervisor, events):
        supervisor.start()
        server.alive = False
        restarted(supervisor, 5)
    pauses = [event.rpartition("again in ")[2] for event in events if "again in" in event]
    assert pauses == ["0.01 s", "0.02 s", "0.04 s", "0.04 s", "0.04 s"]


def test_restart_when_the_server_was_well_for_long_then_the_pause_is_short_again():
    server = FakeServer()
    with supervised(server, healthy_after_s=0.0) as (supervisor, events):
        supervisor.start()
        for count in (1, 2, 3):
            server.alive = False
            restarted(supervisor, count)
    assert [event.rpartition("again in ")[2] for event in events if "again in" in event] == ["0.01 s"] * 3


def test_restart_when_the_server_hangs_then_tried_again():
    server = FakeServer()
    with supervised(server, start_timeout_s=0.05) as (supervisor, events):
        supervisor.start()
        server.is_slow = True
        server.alive = False
        deadline = time.monotonic() + 5
        while server.num_starts < 3:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        server.is_slow = False
        restarted(supervisor, 2)
    assert any("did not come up" in event for event in events)


def test_first_start_when_a_model_does_not_load_then_its_reason_and_no_second_try():
    server = FakeServer()
    server.broken_starts = {1}
    with supervised(server) as (supervisor, _):
        with pytest.raises(SetupError, match="model slow: no such folder"):
            supervisor.start()
        assert supervisor.state is ServerState.FAILED
    assert server.num_starts == 1


def test_first_start_when_the_machine_is_not_right_then_its_sentence():
    server = FakeServer()
    server.start_error = SetupError("Port 8001 is taken.")
    with supervised(server) as (supervisor, _), pytest.raises(SetupError, match="Port 8001"):
        supervisor.start()


def test_first_start_when_the_disk_is_full_then_its_words():
    server = FakeServer()

    def full() -> None:
        raise OSError(28, "No space left on device")

    server.start = full
    with supervised(server) as (supervisor, _), pytest.raises(SetupError, match="No space left"):
        supervisor.start()


def test_first_start_when_too_slow_then_stopped():
    server = FakeServer()
    server.is_slow = True
    with supervised(server, start_timeout_s=0.03) as (supervisor, _), pytest.raises(SetupError, match="in time"):
        supervisor.start()
    assert not server.alive


def test_stop_when_called_while_starting_then_start_ends_with_an_error():
    server = FakeServer()
    server.is_slow = True
    with supervised(server, start_timeout_s=60.0) as (supervisor, _):
        threading.Timer(0.05, supervisor.stop).start()
        with pytest.raises(SetupError, match="stopped"):
            supervisor.start()
    assert not server.alive


def test_stop_when_called_in_a_pause_then_at_once():
    server = FakeServer()
    with supervised(server, first_backoff_s=60.0) as (supervisor, _):
        supervisor.start()
        server.alive = False
        assert supervisor.wait_until(ServerState.RECOVERING, 5)
        started = time.monotonic()
        supervisor.stop()
        assert time.monotonic() - started < 5
        assert supervisor.state is ServerState.STOPPED
