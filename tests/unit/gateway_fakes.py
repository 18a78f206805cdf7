"""A scripted text backend and a gateway on a real socket, for the tests of the gateway, the client and the CLI."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import uvicorn

from tandem_client.text import TextChunk, TextRequest
from tandem_gateway.app import create_app
from tandem_gateway.backend import BackendHealth
from tandem_gateway.lifecycle import Lifecycle
from tandem_gateway.server import bind, server_config
from tandem_gateway.settings import GatewaySettings

Script = Callable[[TextRequest], AsyncIterator[TextChunk]]

CHAT = {"model": "tandem", "messages": [{"role": "user", "content": "hi"}]}


def chunk(
    text: str, finish: str = "", *, count: int = 1, index: int = 0, row: int = 0, content: str = "", cached: int = 0
) -> TextChunk:
    return TextChunk(
        text=text,
        finish_reason=finish,
        batch_index=row,
        sequence_index=index,
        num_input_tokens=7,
        num_output_tokens=count,
        num_cached_tokens=cached,
        log_probs_content=content,
        path="fast",
        engine="fast_int4",
        decision="rule: short prompt, 0.1 ms",
        decision_record='{"version": 1}' if count <= 1 else "",
    )


def says(*texts: str, delay_s: float = 0.0, finish: str = "stop") -> Script:
    """Every sequence gets the same words; one chunk per word, or all in one when not streamed, as the router does."""

    async def script(request: TextRequest) -> AsyncIterator[TextChunk]:
        words = texts if request.stream else ("".join(texts),)
        for number, word in enumerate(words, 1):
            for place in range(request.num_sequences):
                row, index = divmod(place, request.sampling.num_return_sequences or 1)
                last = number == len(words)
                if delay_s:
                    await asyncio.sleep(delay_s)
                count = number if request.stream else len(texts)
                yield replace(chunk(word, finish if last else "", count=count), batch_index=row, sequence_index=index)

    return script


def fails(error: Exception, *before: str) -> Script:
    async def script(request: TextRequest) -> AsyncIterator[TextChunk]:
        for number, word in enumerate(before, 1):
            yield chunk(word, count=number)
        raise error

    return script


@dataclass
class FakeBackend:
    script: Script = field(default_factory=lambda: says("Hello", " world"))
    requests: list[TextRequest] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    is_ready: bool = True
    metrics: str = ""

    def reset(self) -> FakeBackend:
        """Back to the first script, nothing seen: one gateway serves the tests of a module."""
        self.script = says("Hello", " world")
        self.requests.clear()
        self.stopped.clear()
        return self

    async def generate(self, request: TextRequest) -> AsyncGenerator[TextChunk, None]:
        self.requests.append(request)
        is_done = False
        try:
            async for item in self.script(request):
                yield item
            is_done = True
        finally:
            if not is_done:
                self.stopped.append(request.request_id)

    async def health(self) -> BackendHealth:
        return BackendHealth(is_live=True, parts={"tandem": self.is_ready})

    async def metrics_text(self) -> str:
        return self.metrics

    async def close(self) -> None:
        pass


@dataclass
class RunningGateway:
    url: str
    port: int
    backend: FakeBackend
    lifecycle: Lifecycle
    loop: asyncio.AbstractEventLoop
    http: httpx.Client

    def chat(self, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json={**CHAT, **fields})

    def complete(self, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/completions", json={"model": "tandem", "prompt": "hi", **fields})

    def metric(self, name: str) -> float:
        """The value of one sample, named as in the text form; 0 when it is not there."""
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith(name + " "):
                return float(line.rsplit(" ", 1)[1])
        return 0.0


def wait_until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.005)


def events(text: str) -> list[Any]:
    """The data of an SSE body: parsed JSON, and "[DONE]" as it is."""
    data = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    return [item if item == "[DONE]" else json.loads(item, parse_constant=_refuse) for item in data]


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


@contextmanager
def running_gateway(backend: FakeBackend, *, wait_ready: bool = True, **settings: Any) -> Iterator[RunningGateway]:
    chosen = GatewaySettings(**{"port": 0, "warmup": False, "health_interval_s": 0.02, **settings})
    app = create_app(chosen, backend)
    listener = bind(chosen)
    port = listener.getsockname()[1]
    server = uvicorn.Server(server_config(app))
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve(sockets=[listener])

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        wait_until(lambda: server.started)
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=url, timeout=10, trust_env=False) as http:
            if wait_ready:
                wait_until(lambda: http.get("/readyz").status_code == 200)
            yield RunningGateway(url, port, backend, app.state.lifecycle, loops[0], http)
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()
