"""Runs an app under uvicorn with signals of our own: drain first, then stop, exit code 0."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI

from tandem.errors import SetupError
from tandem_gateway.lifecycle import Lifecycle
from tandem_gateway.settings import GatewaySettings

_MAX_HEADER_BYTES = 32 * 1024
# Time for the last in-band errors to reach their clients after the grace time.
_FLUSH_S = 3


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to :func:`serve`; uvicorn's own handling would re-raise them and spoil the exit code."""
        yield


def bind(settings: GatewaySettings) -> socket.socket:
    """The listening socket. Raises: SetupError with the remedy when the port cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY; with 0, its default, every event would wait up to 40 ms for an ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise SetupError(
            f"port: {settings.host}:{settings.port} cannot be used ({error.strerror}); "
            "stop what holds it or choose another with --port",
            field="port",
        ) from error
    return listener


def server_config(app: FastAPI) -> uvicorn.Config:
    """uvicorn as the gateway needs it: plain HTTP/1.1, no log lines and no headers of its own."""
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        timeout_graceful_shutdown=_FLUSH_S,
    )


async def serve(
    app: FastAPI, listener: socket.socket, *, stop: asyncio.Event | None = None, on_ready: Callable[[], None] | None = None
) -> None:
    """Serve until SIGTERM, SIGINT or ``stop``, then drain and return. A second signal cuts the drain short."""
    lifecycle: Lifecycle = app.state.lifecycle
    server = _Server(server_config(app))
    first, second = stop or asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: (second if first.is_set() else first).set())
    serving = loop.create_task(server.serve(sockets=[listener]))
    announcing = loop.create_task(_announce(lifecycle, on_ready))
    try:
        await _first_of(serving, first.wait())
        if not serving.done():
            await _first_of(serving, lifecycle.drain(), second.wait())
            server.should_exit = True
        await serving
    finally:
        announcing.cancel()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _announce(lifecycle: Lifecycle, on_ready: Callable[[], None] | None) -> None:
    await lifecycle.first_ready.wait()
    if on_ready is not None:
        on_ready()


async def _first_of(serving: asyncio.Task[None], *others: Coroutine[Any, Any, object]) -> None:
    """Wait until ``serving`` or one of the others is done; the others are then cancelled."""
    tasks = [asyncio.ensure_future(other) for other in others]
    await asyncio.wait([serving, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
