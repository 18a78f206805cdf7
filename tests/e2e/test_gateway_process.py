"""``tandem serve`` as a user starts it: cold start, examples, a model process that dies, drain, exit code (BC-10, BC-24)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tandem.server.stubs import find_stubs
from tests.e2e.conftest import ROOT, free_ports
from tests.e2e.gateway_calls import GREEDY, user
from tests.unit.gateway_fakes import CHAT, events, wait_until

pytestmark = pytest.mark.e2e

EXAMPLES = ROOT / "clients" / "examples"


@dataclass
class Served:
    """A running ``tandem serve`` and what a poller saw while it started."""

    process: subprocess.Popen[str]
    url: str
    http_port: int
    grpc_port: int
    output: list[str]
    seen: list[tuple[float, int, int]] = field(default_factory=list)  # time, status of /healthz, status of /readyz

    def chat(self, **fields: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/chat/completions", json={**CHAT, **fields}, timeout=60)

    @property
    def triton_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        pids = {int(pid) for file in children for pid in file.read_text().split()}
        (server,) = {pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() == "tritonserver"}
        return server


def status(url: str) -> int:
    """0 when nothing answers."""
    try:
        return httpx.get(url, timeout=5).status_code
    except httpx.HTTPError:
        return 0


def environment() -> dict[str, str]:
    roots = [str(ROOT / "python_backend"), str(ROOT / "clients"), str(ROOT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}


@pytest.fixture(name="served", scope="module")
def _served(engine_home: Path) -> Iterator[Served]:
    port, http, grpc, metrics = free_ports(4)
    command = [sys.executable, "-m", "tandem_cli.main", "serve", "--home", str(engine_home), "--port", str(port)]
    ports = ["--triton-http-port", str(http), "--triton-grpc-port", str(grpc), "--triton-metrics-port", str(metrics)]
    with subprocess.Popen(
        [*command, *ports], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        output: list[str] = []
        reader = threading.Thread(target=lambda: output.extend(process.stdout or ()), daemon=True)
        reader.start()
        served = Served(process, f"http://127.0.0.1:{port}", http, grpc, output)
        try:
            watch_start(served)
            yield served
        finally:
            process.terminate()
            code = process.wait(60)
            reader.join(10)
        assert code == 0, "".join(output)


def watch_start(served: Served) -> None:
    """Poll every 50 ms until ready; the first request goes out at the first green."""
    end = time.monotonic() + 120
    while not served.seen or served.seen[-1][2] != 200:
        assert time.monotonic() < end, "".join(served.output)
        assert served.process.poll() is None, "".join(served.output)
        served.seen.append((time.monotonic(), status(f"{served.url}/healthz"), status(f"{served.url}/readyz")))
        time.sleep(0.05)
    assert served.chat(max_tokens=8, **GREEDY).status_code == 200


def test_bc24_ready_means_ready(served: Served) -> None:
    live = [when for when, health, _ in served.seen if health == 200]
    ready = [when for when, _, is_ready in served.seen if is_ready == 200]
    assert live[0] < ready[0], "live comes before ready"
    assert {is_ready for _, health, is_ready in served.seen[:-1] if health == 200} == {503}


def test_start_when_ready_then_prints_the_url_and_a_curl_line(served: Served) -> None:
    wait_until(lambda: any("curl" in line for line in served.output))
    text = "".join(served.output)
    assert f"Tandem is ready: {served.url}" in text
    assert f"curl -sN {served.url}/v1/chat/completions" in text


def example_arguments(served: Served) -> dict[str, list[str]]:
    python = [sys.executable]
    return {
        "openai_chat.py": [*python, served.url],
        "openai_stream.py": [*python, served.url],
        "raw_sse.py": [*python, served.url],
        "tandem_client_chat.py": [*python, served.url],
        "triton_grpc_stream.py": [*python, f"127.0.0.1:{served.grpc_port}"],
        "triton_generate_stream.py": [*python, f"http://127.0.0.1:{served.http_port}"],
        "curl.sh": ["sh", served.url],
    }


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")))
def test_example_when_run_then_answers(served: Served, name: str) -> None:
    program, argument = example_arguments(served)[name]
    done = subprocess.run(
        [program, str(EXAMPLES / name), argument], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 20


def test_command_line_when_used_then_chats_and_shows_status(served: Served) -> None:
    tandem = [sys.executable, "-m", "tandem_cli.main"]
    options: dict[str, Any] = {"env": environment(), "capture_output": True, "text": True, "timeout": 60, "check": True}
    chat = subprocess.run([*tandem, "chat", "Say hi.", "--url", served.url, "--max-tokens", "8", "--temperature", "0"], **options)
    assert chat.stdout.strip()
    assert "fast path (fast_int4)" in chat.stderr
    report = json.loads(subprocess.run([*tandem, "status", "--json", "--url", served.url], **options).stdout)
    assert report["status"] == "ready"
    assert all(report["backend"]["parts"].values())
    assert set(report["engines"]) == {"fast_int4", "fast_int8", "slow"}


def test_fingerprint_when_answered_then_names_the_engine_set(served: Served) -> None:
    prints = {served.chat(max_tokens=1, model=model).json()["system_fingerprint"] for model in ("tandem-fast", "tandem-slow")}
    assert len(prints) == 1
    assert prints.pop().startswith("fp_")


def test_bc10_model_process_dies_in_the_middle_of_a_stream(served: Served) -> None:
    before = served.chat(model="tandem-fast", max_tokens=12, **GREEDY).json()["choices"]
    fields = {**CHAT, "model": "tandem-fast", "stream": True, "max_tokens": 400, "ignore_eos": True}
    with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=fields, timeout=60) as response:
        lines: list[str] = []
        for line in response.iter_lines():
            lines.append(line)
            if len(lines) == 8:
                (victim,) = [stub for stub in find_stubs(served.triton_pid) if stub.instance.startswith("fast_int4")]
                os.kill(victim.pid, signal.SIGKILL)
                killed = time.monotonic()
        ended = time.monotonic()
    got = events("\n".join(lines))
    assert got[-1]["error"]["code"] == "engine_failure"
    assert ended - killed < 2  # one second, and one more for a machine that does other things
    assert "[DONE]" not in got
    assert all(event["choices"][0]["finish_reason"] is None for event in got[:-1])
    assert "stub" not in got[-1]["error"]["message"].lower()
    wait_until(lambda: status(f"{served.url}/readyz") == 503, timeout_s=5)
    assert status(f"{served.url}/healthz") == 200
    wait_until(lambda: status(f"{served.url}/readyz") == 200, timeout_s=120)
    assert served.chat(model="tandem-fast", max_tokens=12, **GREEDY).json()["choices"] == before


def test_bc24_stop_means_drain(served: Served) -> None:
    """Last: it ends the server; the fixture checks exit code 0."""
    texts: list[str] = []
    fields = {
        **CHAT,
        "messages": user("Tell a story."),
        "stream": True,
        "max_tokens": 300,
        "ignore_eos": True,
        "model": "tandem-fast",
    }

    def read() -> None:
        texts.append(httpx.post(f"{served.url}/v1/chat/completions", json=fields, timeout=60).text)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    served.process.send_signal(signal.SIGTERM)
    wait_until(lambda: status(f"{served.url}/readyz") in (503, 0), timeout_s=1)
    assert refused(lambda: served.chat().status_code)
    for thread in threads:
        thread.join()
    assert all(events(text)[-1] == "[DONE]" for text in texts)
    assert served.process.wait(60) == 0


def refused(call: Callable[[], int]) -> bool:
    try:
        return call() == 503
    except httpx.ConnectError:
        return True
