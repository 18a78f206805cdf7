"""One real tritonserver per session with the committed model repository and the real engines; its log is shown on failure.

``TANDEM_TEST_HOME`` names the folder of the engines (default ``~/.cache/tandem``); what is missing there is built once.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from build_engines.encoder import ensure_encoder
from build_engines.ensure import ensure_engines
from build_engines.progress import make_reporter
from tandem.server.supervisor import ServerState, Supervisor, SupervisorConfig
from tandem.server.triton_process import TritonServer, TritonServerConfig

ROOT = Path(__file__).resolve().parents[2]


class RunningTriton:
    """What a test may do with the server."""

    def __init__(self, server: TritonServer, supervisor: Supervisor) -> None:
        self.server = server
        self.supervisor = supervisor
        self.config = server.config

    def wait_ready(self, timeout_s: float = 120.0) -> None:
        assert self.supervisor.wait_until(ServerState.READY, timeout_s), self.supervisor.state


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@pytest.fixture(scope="session")
def engine_home() -> Path:
    """TANDEM_HOME with all CPU engines built from the default weights."""
    home = Path(os.environ.get("TANDEM_TEST_HOME") or Path.home() / ".cache" / "tandem")
    ensure_engines(home, None, None, make_reporter())
    ensure_encoder(home, make_reporter())
    return home


@pytest.fixture(scope="session")
def session_triton(engine_home: Path) -> Iterator[RunningTriton]:
    http, grpc, metrics = free_ports(3)
    server = TritonServer(TritonServerConfig(ROOT / "model_repository", engine_home, http, grpc, metrics))
    supervisor = Supervisor(server, SupervisorConfig(start_timeout_s=180.0))
    supervisor.start()
    yield RunningTriton(server, supervisor)
    supervisor.stop()


@pytest.fixture
def triton(session_triton: RunningTriton) -> RunningTriton:
    """The server of the session, ready."""
    session_triton.wait_ready()
    return session_triton


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    outcome = yield
    report = outcome.get_result()
    running = getattr(item, "funcargs", {}).get("session_triton")
    if report.failed and running is not None:
        report.sections.append((f"log of tritonserver ({running.config.log_file})", running.server.log_tail(60)))
