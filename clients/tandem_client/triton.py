"""The text model ``tandem`` over gRPC streams: one stream per request, stopped when its reader goes away. Asyncio.

Used by the gateway and by the gRPC transport of the client. Errors are of :mod:`tandem.errors`, read back from Triton's text.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable
from typing import Any

import grpc
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tandem.errors import EngineFailure, Overloaded, TandemError, from_wire
from tandem.protocol import TANDEM_MODEL
from tandem_client.tensors import decode_response, encode_request, encode_stop
from tandem_client.text import TextChunk, TextRequest

_log = logging.getLogger(__name__)

# Errors of a stream come as text, which carries our own code. Triton 2.51 could give gRPC status codes too (metadata
# "triton_grpc_error"), but an error then races with the end of its stream and can bring the server down with a segmentation fault.
# An ensemble does not pass a cancel on to a step that runs, so the router is told by the ``stop`` tensor. A stop that arrives while
# its request is between two steps finds nothing to stop: it is sent again until the request has ended. Unknown ids are no error.
# Pauses before each stop. Only when all of them were without effect is the call cancelled: Triton 2.51 can lose the memory of an
# ensemble request that is cancelled at the moment it completes.
STOP_DELAYS_S = (0.0, 0.05, 0.25, 1.0)
STOP_TIMEOUT_S = 5.0
_READY_TIMEOUT_S = 2.0
_MAX_LOGGED_CHARS = 500


class AsyncTriton:
    """One event loop. The connection is opened at the first use, inside that loop."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._opened: Any = None
        self._stops: set[asyncio.Task[None]] = set()

    async def generate(self, request: TextRequest) -> AsyncGenerator[TextChunk, None]:
        """The chunks of one request. Leaving early stops the engines; that goes on after this has returned.

        Raises: TandemError of the server's code; Overloaded when it cannot be reached, EngineFailure when it goes away later.
        """
        arrived: asyncio.Queue[TextChunk | TandemError | None] = asyncio.Queue()
        reader = asyncio.create_task(self._read(request, arrived))
        delays_s: tuple[float, ...] = STOP_DELAYS_S
        try:
            while (item := await arrived.get()) is not None:
                if isinstance(item, TandemError):
                    delays_s = STOP_DELAYS_S[1:]  # the server is about to end it by itself
                    raise item
                yield item
        finally:
            if not reader.done():
                self._in_background(self._wind_down(request.request_id, reader, delays_s))

    async def ready_models(self, models: Iterable[str]) -> dict[str, bool]:
        """Readiness by model. Raises: Overloaded when the server does not answer."""
        names = tuple(models)
        try:
            if await self._client.is_server_ready(client_timeout=_READY_TIMEOUT_S):
                return dict.fromkeys(names, True)
            ready = await asyncio.gather(*(self._client.is_model_ready(name, client_timeout=_READY_TIMEOUT_S) for name in names))
        except InferenceServerException as error:
            raise Overloaded("the model server is not available at the moment; try again") from error
        return dict(zip(names, ready, strict=True))

    async def close(self) -> None:
        """Wait for running stops (bounded), then close the connection."""
        if self._stops:
            await asyncio.wait(self._stops, timeout=STOP_TIMEOUT_S)
        if self._opened is not None:
            await self._opened.close()

    @property
    def _client(self) -> Any:
        if self._opened is None:
            self._opened = triton_aio.InferenceServerClient(self._address)
        return self._opened

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    async def _read(self, request: TextRequest, arrived: asyncio.Queue[TextChunk | TandemError | None]) -> None:
        """Everything the server says about one request, in order; None comes last. Cancelling this task cancels the call."""
        has_answered = False
        try:
            call = self._client.stream_infer(_one(request.request_id, encode_request(request)))
            async for result, error in call:
                item = _read_response(result, error)
                if item is not None:
                    has_answered = True
                    arrived.put_nowait(item)
        except grpc.RpcError as error:
            arrived.put_nowait(read_rpc_error(error, has_answered=has_answered))
        finally:
            arrived.put_nowait(None)

    async def _wind_down(self, request_id: str, reader: asyncio.Task[None], delays_s: Iterable[float]) -> None:
        """Stop the request until the server has ended it; at last, cancel the call."""
        for delay_s in delays_s:
            await asyncio.wait([reader], timeout=delay_s)
            if reader.done():
                return
            await self._stop(request_id)
        await asyncio.wait([reader], timeout=STOP_TIMEOUT_S)
        if not reader.done():
            _log.warning("request %s went on after it was stopped; its call is cancelled", request_id)
            reader.cancel()

    async def _stop(self, request_id: str) -> None:
        call = self._client.stream_infer(_one(request_id, encode_stop()), stream_timeout=STOP_TIMEOUT_S)
        try:
            async for _, error in call:
                if error is not None:
                    _log.warning("the stop of request %s was refused: %s", request_id, error.message())
        except grpc.RpcError as error:
            # The server is gone, and the request with it; whoever watches the server deals with that.
            _log.warning("the stop of request %s was not delivered: %s", request_id, error.code())


def _read_response(result: Any, error: Any) -> TextChunk | TandemError | None:
    """None for an empty final response. An answer that breaks the contract is an error like any other."""
    try:
        return read_error(error.message()) if error is not None else decode_response(result.get_response())
    except EngineFailure as broken:
        return broken


async def _one(request_id: str, inputs: list[Any]) -> AsyncIterator[dict[str, Any]]:
    """A stream of one request. Its end tells Triton that no more will come: the answers then end after the last response."""
    yield {"model_name": TANDEM_MODEL, "request_id": request_id, "inputs": inputs}


def read_error(text: str) -> TandemError:
    """The error in a text of Triton's. Other text may name inner parts: it goes to the log, the caller gets a sentence."""
    known = from_wire(text)
    if known is not None:
        return known
    _log.error("the model server gave an error outside our table: %s", " ".join(text.split())[:_MAX_LOGGED_CHARS])
    return EngineFailure("the model server failed; try again")


def read_rpc_error(error: Any, *, has_answered: bool) -> TandemError:
    """The error behind a failed gRPC call."""
    details = error.details() or ""
    known = from_wire(details)
    if known is not None:
        return known
    if error.code() is grpc.StatusCode.UNAVAILABLE and not has_answered:
        _log.warning("the model server is not available: %s", details)
        return Overloaded("the model server is not available at the moment; try again")
    return read_error(f"{error.code()}: {details}")
