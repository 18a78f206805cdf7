"""A server of its own for a benchmark: the real ``tandem serve`` on free ports, ended with it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from build_engines.render import PROFILES_DIR
from loadtest.bench import Progress
from tandem.errors import SetupError

_READY_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 30.0
_MANY = 64


@dataclass(frozen=True, slots=True)
class PrivateServer:
    """Where the parts of a running server listen."""

    http_url: str
    grpc_address: str
    triton_metrics_url: str
    pid: int


@contextmanager
def private_server(progress: Progress, *, stats_check_period_ms: int, rules: str | None = None) -> Generator[PrivateServer]:
    """Start, wait until ready, yield, stop. ``rules``: text of the router's rules file, None for the default one.

    Raises: SetupError with the end of the log when it does not get ready.
    """
    http_port, triton_http_port, grpc_port, metrics_port = _free_ports(4)
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "bench.yaml"
        rules_file = Path(folder) / "rules.yaml"
        if rules is not None:
            rules_file.write_text(rules, encoding="utf-8")
        profile.write_text(_cpu_profile(stats_check_period_ms, None if rules is None else rules_file), encoding="utf-8")
        log_file = Path(folder) / "serve.log"
        command = [
            *(sys.executable, "-m", "tandem_cli.main", "serve"),
            *("--port", str(http_port), "--triton-http-port", str(triton_http_port)),
            *("--triton-grpc-port", str(grpc_port), "--triton-metrics-port", str(metrics_port)),
            *("--profile", str(profile)),
        ]
        progress("starting a server for the benchmark")
        with log_file.open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        server = PrivateServer(
            f"http://127.0.0.1:{http_port}", f"127.0.0.1:{grpc_port}", f"http://127.0.0.1:{metrics_port}/metrics", process.pid
        )
        try:
            _wait_ready(server, process, log_file)
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


_SAMPLE = re.compile(r"^(?P<name>\w+)\{(?P<labels>[^}]*)\} (?P<value>[-+.\deE]+)$", re.MULTILINE)


def engine_gauges(text: str, family: str, member: str) -> dict[str, float]:
    """Engine -> value of one member of a ``nv_trt_llm_*`` family in Prometheus text."""
    values: dict[str, float] = {}
    for sample in _SAMPLE.finditer(text):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', sample["labels"]))
        if sample["name"] == family and member in labels.values():
            values[labels["model"]] = float(sample["value"])
    return values


def _wait_ready(server: PrivateServer, process: subprocess.Popen[bytes], log_file: Path) -> None:
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{server.http_url}/readyz", timeout=2.0, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass  # it does not listen yet
        time.sleep(0.2)
    tail = log_file.read_text(errors="replace").strip().splitlines()[-1:]
    raise SetupError(f"the server for the benchmark did not get ready: {' '.join(tail) or 'it said nothing'}")


def _cpu_profile(stats_check_period_ms: int, rules_file: Path | None) -> str:
    """The profile that users get, but with gauges that are renewed more often, and with the queues in the engines.

    The engines' gauges show what waits there; the router's admission queue has none.
    """
    profile = yaml.safe_load((PROFILES_DIR / "cpu.yaml").read_text(encoding="utf-8"))
    for model in profile["models"].values():
        if "stats_check_period_ms" in model.get("parameters", {}):
            model["parameters"]["stats_check_period_ms"] = stats_check_period_ms
        if "max_in_flight" in model.get("parameters", {}):
            model["parameters"]["max_in_flight"] = _MANY
    if rules_file is not None:
        profile["models"]["router"]["parameters"]["rules_file"] = str(rules_file)
    return yaml.safe_dump(profile, sort_keys=False)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
