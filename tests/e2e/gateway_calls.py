"""The gateway in front of the session's Triton, and what every case asks afterwards: is the server as it was before?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tandem_cli.status import read_status
from tandem_gateway.triton_backend import TritonAddress, TritonBackend
from tests.e2e.conftest import RunningTriton
from tests.unit.gateway_fakes import RunningGateway, events, running_gateway, wait_until

GREEDY = {"temperature": 0}
ENGINES = ("fast_int4", "fast_int8", "slow")


@contextmanager
def gateway_over(triton: RunningTriton) -> Iterator[RunningGateway]:
    backend = TritonBackend(TritonAddress(triton.config.grpc_url, triton.config.metrics_url))
    with running_gateway(backend, wait_ready=False, warmup=True) as gateway:
        wait_until(lambda: gateway.http.get("/readyz").status_code == 200, timeout_s=60)
        gateway.http.timeout = httpx.Timeout(60)
        yield gateway


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def joined(got: list[Any], index: int = 0) -> str:
    """The text of one choice of a chat or completion stream."""
    text = ""
    for event in got:
        for choice in event["choices"] if event != "[DONE]" else ():
            if choice["index"] == index:
                text += choice["text"] if "text" in choice else choice["delta"].get("content", "")
    return text


def stream_text(gateway: RunningGateway, **fields: Any) -> str:
    return joined(events(gateway.chat(stream=True, **fields).text))


def strict(response: httpx.Response) -> Any:
    """The body, refused when it is not strict JSON."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(response.content, parse_constant=refuse)


def in_use(gateway: RunningGateway, engine: str) -> dict[str, float]:
    """What an engine holds and does."""
    groups = read_status(gateway.url)["engines"][engine]
    requests = groups["requests"]
    return {"blocks": groups["kv_blocks"]["used"], "running": requests["scheduled"], "waiting": requests["waiting"]}


def assert_idle(gateway: RunningGateway, timeout_s: float = 3.0) -> None:
    idle = {"blocks": 0.0, "running": 0.0, "waiting": 0.0}
    wait_until(lambda: all(in_use(gateway, engine) == idle for engine in ENGINES), timeout_s)


class Alive:
    """Alive: same greedy text as before, ready, nothing held, no process restarted."""

    def __init__(self, gateway: RunningGateway, triton: RunningTriton) -> None:
        self._gateway = gateway
        self._triton = triton
        self._before = self._state()

    def _state(self) -> tuple[str, object, object, int]:
        answer = self._gateway.chat(messages=user("Name three colours."), max_tokens=16, **GREEDY).json()
        text = answer["choices"][0]["message"]["content"]
        return text, self._triton.server.pid, self._triton.server.stubs(), self._triton.supervisor.num_restarts

    def check(self) -> None:
        assert self._state() == self._before
        assert self._gateway.http.get("/readyz").status_code == 200
        assert_idle(self._gateway)
