"""Disconnects, deadlines, limits, readiness, drain and the counting of outcomes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tandem.errors import EngineFailure
from tandem_client.text import TextChunk, TextRequest
from tandem_gateway.server import bind
from tandem_gateway.settings import GatewaySettings
from tests.unit.gateway_fakes import CHAT, FakeBackend, RunningGateway, chunk, events, fails, running_gateway, says, wait_until

ROOT = Path(__file__).resolve().parents[2]


async def endless(request: TextRequest) -> AsyncIterator[TextChunk]:
    for number in range(1, 10_000):
        yield chunk("x", count=number)
        await asyncio.sleep(0.01)


async def mute(request: TextRequest) -> AsyncIterator[TextChunk]:
    await asyncio.sleep(60)
    yield chunk("never", "stop")


def outcome(gateway: RunningGateway, name: str) -> float:
    return gateway.metric(f'tandem_gateway_requests_total{{operation="chat",outcome="{name}"}}')


def open_chat(gateway: RunningGateway, *, stream: bool) -> socket.socket:
    body = json.dumps({**CHAT, "stream": stream}).encode()
    raw = socket.create_connection(("127.0.0.1", gateway.port))
    raw.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    return raw


@pytest.mark.parametrize(("script", "stream"), [(endless, True), (mute, True), (endless, False), (mute, False)])
def test_client_when_it_goes_away_then_backend_stops_within_a_second(script: object, stream: bool) -> None:
    with running_gateway(FakeBackend(script)) as gateway:  # type: ignore[arg-type]
        raw = open_chat(gateway, stream=stream)
        wait_until(lambda: len(gateway.backend.requests) == 1)
        if stream and script is endless:
            raw.recv(1000)
        raw.close()
        wait_until(lambda: gateway.backend.stopped == [gateway.backend.requests[0].request_id], timeout_s=1)
        wait_until(lambda: outcome(gateway, "cancelled") == 1)
        assert gateway.lifecycle.num_in_flight == 0


def test_deadline_when_passed_then_504_or_error_event_and_backend_stops() -> None:
    with running_gateway(FakeBackend(mute), request_timeout_s=0.1) as gateway:
        assert gateway.chat().status_code == 504
        assert gateway.chat(stream=True).status_code == 504
        gateway.backend.script = endless
        got = events(gateway.chat(stream=True).text)
        assert got[-1]["error"]["code"] == "deadline_exceeded"
        wait_until(lambda: len(gateway.backend.stopped) == 3)
        assert outcome(gateway, "failed") == 3


def test_in_flight_when_full_then_503_with_retry_after_at_once() -> None:
    with running_gateway(FakeBackend(mute), max_in_flight=1) as gateway:
        raw = open_chat(gateway, stream=True)
        wait_until(lambda: gateway.lifecycle.num_in_flight == 1)
        response = gateway.chat()
        assert (response.status_code, response.json()["error"]["code"]) == (503, "overloaded")
        assert response.headers["retry-after"] == "1"
        raw.close()
        wait_until(lambda: gateway.lifecycle.num_in_flight == 0)
        gateway.backend.reset()
        assert gateway.chat().status_code == 200
        assert outcome(gateway, "rejected") == 1


def test_readiness_when_backend_is_cold_then_false_until_warmed_up_on_every_path() -> None:
    backend = FakeBackend(is_ready=False)
    with running_gateway(backend, wait_ready=False, warmup=True) as gateway:
        assert gateway.http.get("/healthz").status_code == 200
        answer = gateway.http.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (503, "starting")
        refused = gateway.chat()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        backend.is_ready = True
        wait_until(lambda: gateway.http.get("/readyz").status_code == 200)
        assert [(request.path, request.task) for request in backend.requests] == [("fast", None), ("auto", "code"), ("slow", None)]
        assert gateway.chat().status_code == 200


def test_readiness_when_warm_up_fails_then_stays_false() -> None:
    backend = FakeBackend(fails(EngineFailure("not yet")))
    with running_gateway(backend, wait_ready=False, warmup=True) as gateway:
        wait_until(lambda: len(backend.requests) >= 2)
        assert gateway.http.get("/readyz").status_code == 503
        backend.reset()
        wait_until(lambda: gateway.http.get("/readyz").status_code == 200)


def test_readiness_when_backend_goes_and_returns_then_tells_the_truth() -> None:
    backend = FakeBackend()
    with running_gateway(backend, warmup=True) as gateway:
        backend.is_ready = False
        wait_until(lambda: gateway.http.get("/readyz").json()["status"] == "degraded")
        assert gateway.http.get("/readyz").json()["backend"] == {"live": True, "parts": {"tandem": False}}
        backend.is_ready = True
        wait_until(lambda: gateway.http.get("/readyz").status_code == 200)
        assert len(backend.requests) == 6


def test_drain_when_asked_then_open_streams_finish_and_new_requests_get_503() -> None:
    with running_gateway(FakeBackend(says(*"abcdef", delay_s=0.1))) as gateway:
        texts: list[str] = []

        def read_stream() -> None:
            texts.append(httpx.post(f"{gateway.url}/v1/chat/completions", json={**CHAT, "stream": True}).text)

        streams = [threading.Thread(target=read_stream) for _ in range(3)]
        for stream in streams:
            stream.start()
        wait_until(lambda: gateway.lifecycle.num_in_flight == 3)
        draining = asyncio.run_coroutine_threadsafe(gateway.lifecycle.drain(), gateway.loop)
        wait_until(lambda: gateway.http.get("/readyz").json()["status"] == "draining", timeout_s=0.3)
        assert gateway.chat().status_code == 503
        draining.result(5)
        for stream in streams:
            stream.join()
        assert all(events(text)[-1] == "[DONE]" for text in texts)


def test_drain_when_grace_is_over_then_the_rest_gets_an_error_event() -> None:
    with running_gateway(FakeBackend(endless), drain_grace_s=0.2) as gateway:
        with gateway.http.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            asyncio.run_coroutine_threadsafe(gateway.lifecycle.drain(), gateway.loop).result(5)
            rest = [line for line in lines if line]
        assert json.loads(rest[-1][6:])["error"]["code"] == "overloaded"
        assert "[DONE]" not in "".join(rest)
        wait_until(lambda: len(gateway.backend.stopped) == 1)
        assert outcome(gateway, "failed") == 1


def test_process_when_terminated_then_drains_and_exits_with_zero() -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/python_backend:{ROOT}/clients"}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tandem_gateway", "--port", str(port), "--triton-grpc", "127.0.0.1:1"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: _answers(port), timeout_s=20)
        assert httpx.get(f"http://127.0.0.1:{port}/readyz").json()["status"] == "starting"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    except httpx.HTTPError:
        return False


def test_process_when_port_is_taken_then_one_sentence_and_exit_code_two() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}/python_backend:{ROOT}/clients"}
        command = [sys.executable, "-m", "tandem_gateway", "--port", str(holder.getsockname()[1])]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "--port" in done.stderr


def test_outcomes_when_mixed_then_each_request_is_counted_once() -> None:
    with running_gateway(FakeBackend()) as gateway:
        for _ in range(6):
            gateway.chat()
        gateway.chat(n=2, stream=True)
        gateway.chat(max_tokens=0)
        gateway.backend.script = fails(EngineFailure("x"), "a")
        gateway.chat(stream=True)
        gateway.backend.script = endless
        open_chat(gateway, stream=True).close()
        wait_until(lambda: outcome(gateway, "cancelled") == 1)
        want = {"ok": 7, "rejected": 1, "failed": 1, "cancelled": 1}
        wait_until(lambda: {name: outcome(gateway, name) for name in want} == want)
        assert gateway.metric('tandem_gateway_path_total{engine="fast_int4",path="fast"}') >= 8


def test_metrics_when_scraped_then_hold_both_names_and_the_backends_own() -> None:
    backend = FakeBackend(metrics="nv_trt_llm_request_metrics 1\n")
    with running_gateway(backend) as gateway:
        gateway.chat(stream=True)
        # A request is counted when it is over, which may be a moment after its client has read the end.
        wait_until(lambda: outcome(gateway, "ok") == 1)
        text = gateway.http.get("/metrics").text
    for name in (
        "gen_ai_server_time_to_first_token_seconds_bucket",
        "gen_ai_server_request_duration_seconds_count",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:generation_tokens_total",
        "nv_trt_llm_request_metrics 1",
    ):
        assert name in text


def test_client_when_slow_to_read_then_answer_is_still_whole() -> None:
    with running_gateway(FakeBackend(says(*["word "] * 2000))) as gateway, open_chat(gateway, stream=True) as raw:
        time.sleep(0.2)
        body = b""
        while b"[DONE]" not in body:
            part = raw.recv(1 << 16)
            assert part
            body += part
    assert body.count(b'"word "') == 2000


def test_listener_when_bound_then_names_tcp_so_that_events_are_not_held_back() -> None:
    """asyncio sets TCP_NODELAY only on sockets that name their protocol."""
    with bind(GatewaySettings(port=0)) as listener:
        assert listener.proto == socket.IPPROTO_TCP
