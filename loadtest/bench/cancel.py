"""``tandem bench cancel``: clients that go away, over HTTP and gRPC, while their request waits, prefills or decodes.

``stop_ms`` is the time from the moment a client lets go until the engine has ended its request and has its blocks back. The engine
itself notes that moment, by the clock that the client reads too, so that watching costs the watched machine nothing.
``leaked_blocks`` is the difference of KV blocks in use before and after all cancels.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx
import numpy as np

from loadtest.bench import Progress
from loadtest.bench.private_server import PrivateServer, engine_gauges, private_server
from tandem_client import AsyncTandemClient
from tandem_client.results import Delta
from tandem_client.text import Sampling

_STATS_PERIOD_MS = 50
_PHASES = ("decode", "prefill", "queue")
_MODEL = "tandem-fast"
_LONG = Sampling(max_tokens=1500, temperature=0.0, ignore_eos=True)
_NUM_SEATS = 16
_SHORT_PROMPT = "Tell me a long story about the sea."
_LONG_PROMPT = "The harbour wakes before the town does. " * 300
_POLL_S = 0.02
_SETTLE_TIMEOUT_S = 10.0


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    """Cancel 200 requests (30 when ``quick``), a third in each phase, HTTP streamed, HTTP whole and gRPC in turn."""
    with private_server(progress, stats_check_period_ms=_STATS_PERIOD_MS) as server:
        return asyncio.run(_measure(server, 30 if quick else 200, progress))


async def _measure(server: PrivateServer, num_cancels: int, progress: Progress) -> dict[str, Any]:
    async with _Probe.open(server) as probe:
        used_before = await probe.used_blocks()
        by_phase: dict[str, list[float]] = {phase: [] for phase in _PHASES}
        by_client: dict[str, list[float]] = {name: [] for name in _KINDS}
        clients = itertools.cycle(_KINDS)
        for phase in _PHASES:
            share = num_cancels // len(_PHASES) + (phase == _PHASES[0]) * (num_cancels % len(_PHASES))
            async with _neighbours(server, _NUM_SEATS if phase == "queue" else 0, probe):
                for number in range(share):
                    client = next(clients)
                    stop_ms = await _cancel_once(server, _KINDS[client], phase, probe)
                    by_phase[phase].append(stop_ms)
                    by_client[client].append(stop_ms)
                    if (number + 1) % 10 == 0:
                        progress(f"{phase}: {number + 1} of {share} cancelled, median {np.median(by_phase[phase]):.1f} ms")
        await probe.wait_active(0)
        leaked = await probe.used_blocks() - used_before
    every = list(itertools.chain.from_iterable(by_phase.values()))
    return {
        "n": len(every),
        "stop_ms": _quantiles(every),
        "stop_ms_by_phase": {phase: _quantiles(values) for phase, values in by_phase.items()},
        "stop_ms_by_client": {client: _quantiles(values) for client, values in by_client.items()},
        "leaked_blocks": int(leaked),
    }


def _quantiles(values: list[float]) -> dict[str, float]:
    return {name: round(float(np.quantile(values, q)), 1) for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}


class _Probe:
    """Reads the engines' gauges."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url

    @classmethod
    @asynccontextmanager
    async def open(cls, server: PrivateServer) -> AsyncGenerator[_Probe]:
        async with httpx.AsyncClient(trust_env=False) as client:
            yield cls(client, server.triton_metrics_url)

    async def used_blocks(self) -> float:
        return await self._sum("nv_trt_llm_kv_cache_block_metrics", "used")

    async def active(self) -> float:
        return await self._sum("nv_trt_llm_request_metrics", "active")

    async def num_cancelled(self) -> float:
        return await self._sum("tandem_engine_metrics", "cancelled_requests")

    async def wait_cancelled(self, count: int) -> float:
        """Until ``count`` requests have been cancelled since the start; the Unix time of the last. Raises: TimeoutError."""
        deadline = time.monotonic() + _SETTLE_TIMEOUT_S
        while await self.num_cancelled() < count:
            if time.monotonic() > deadline:
                raise TimeoutError("a request still runs though its client has gone")
            await asyncio.sleep(_POLL_S)
        return max((await self._values("tandem_engine_metrics", "last_cancel_timestamp_s")).values())

    async def wait_active(self, count: int) -> None:
        """Until exactly ``count`` sequences are in the engines. Raises: TimeoutError."""
        deadline = time.monotonic() + _SETTLE_TIMEOUT_S
        while (active := await self.active()) != count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{active:g} sequences are in the engines, {count} should be")
            await asyncio.sleep(_POLL_S)

    async def _sum(self, family: str, member: str) -> float:
        return sum((await self._values(family, member)).values())

    async def _values(self, family: str, member: str) -> dict[str, float]:
        response = await self._client.get(self._url)
        response.raise_for_status()
        return engine_gauges(response.text, family, member)


async def _cancel_once(server: PrivateServer, kind: Kind, phase: str, probe: _Probe) -> float:
    """Start one request, bring it into the phase, let go; milliseconds until the engine is rid of it."""
    base = int(await probe.active())
    num_cancelled = int(await probe.num_cancelled())
    is_decoding = asyncio.Event()
    prompt = _LONG_PROMPT if phase == "prefill" else _SHORT_PROMPT
    task = asyncio.create_task(_swallow_cancel(kind(server, prompt, is_decoding)))
    if phase == "decode":
        await asyncio.wait_for(is_decoding.wait(), _SETTLE_TIMEOUT_S)
    await probe.wait_active(base + 1)
    assert not task.done(), "the request ended by itself"
    started = time.time()
    task.cancel()
    await task
    stop_ms = (await probe.wait_cancelled(num_cancelled + 1) - started) * 1e3
    await probe.wait_active(base)
    return stop_ms


async def _swallow_cancel(request: Awaitable[None]) -> None:
    try:
        await request
    except asyncio.CancelledError:
        return


@asynccontextmanager
async def _neighbours(server: PrivateServer, count: int, probe: _Probe) -> AsyncGenerator[None]:
    """Keep all seats of the engine taken for as long as the block runs; a neighbour that ends is followed by another.

    They are not streamed: reading sixteen streams would delay the clock of this very process.
    """

    async def keep_going() -> None:
        while True:
            await _http_whole(server, _SHORT_PROMPT, asyncio.Event())

    tasks = [asyncio.create_task(_swallow_cancel(keep_going())) for _ in range(count)]
    if tasks:
        await probe.wait_active(count)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)
        await probe.wait_active(0)


async def _http_stream(server: PrivateServer, prompt: str, is_decoding: asyncio.Event) -> None:
    await _stream(AsyncTandemClient.http(server.http_url), prompt, is_decoding)


async def _grpc_stream(server: PrivateServer, prompt: str, is_decoding: asyncio.Event) -> None:
    await _stream(AsyncTandemClient.grpc(server.grpc_address), prompt, is_decoding)


async def _stream(client: AsyncTandemClient, prompt: str, is_decoding: asyncio.Event) -> None:
    async with client, aclosing(client.stream(prompt, model=_MODEL, sampling=_LONG)) as events:
        num_texts = 0
        async for event in events:
            num_texts += isinstance(event, Delta) and bool(event.text)
            if num_texts == 3:
                is_decoding.set()


async def _http_whole(server: PrivateServer, prompt: str, is_decoding: asyncio.Event) -> None:
    """Not streamed: nothing is heard until the end, so "decoding" is when a short prompt must be past its prefill."""
    body = {
        "model": _MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": _LONG.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    asyncio.get_running_loop().call_later(0.5, is_decoding.set)
    async with httpx.AsyncClient(trust_env=False, timeout=None) as client:
        await client.post(f"{server.http_url}/v1/chat/completions", json=body)


Kind = Callable[[PrivateServer, str, asyncio.Event], Awaitable[None]]
_KINDS: dict[str, Kind] = {"http_stream": _http_stream, "http_whole": _http_whole, "grpc_stream": _grpc_stream}
