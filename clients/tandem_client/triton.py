"""The text model ``tandem`` over gRPC streams: one stream per request, stopped when its reader goes away. Asyncio.

Used by the gateway and by the gRPC transport of the client. Errors are of :mod:`tandem.errors`, read back from Triton's text.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import Any

import grpc
import tritonclient.grpc.aio as triton_aio
from tritonclient.utils import InferenceServerException

from tandem.errors import EngineFailure, Overloaded, TandemError, from_wire
from tandem.protocol import TANDEM_MODEL
from tandem_client.tensors import decode_response, encode_request, encode_stop
from tandem_client.text import TextChunk, TextRequest

_log = logging.getLogger(__name__)

# Asks Triton to give errors of a stream as gRPC status codes.
STREAM_HEADERS = {"triton_grpc_error": "true"}
# An ensemble does not pass a cancel on to a step that runs, so the router is told by the ``stop`` tensor. A stop that arrives while
# its request is between two steps finds nothing to stop: it is sent again a little later. Unknown ids are no error.
STOP_DELAYS_S = (0.0, 0.05, 0.25)
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
        call = self._client.stream_infer(_one(request.request_id, encode_request(request)), headers=STREAM_HEADERS)
        has_answered = is_over = False
        try:
            async for result, error in call:
                if error is not None:
                    is_over = request.num_rows == 1  # the server has ended this row; others may run on
                    raise read_error(error.message())
                chunk = decode_response(result.get_response())
                if chunk is not None:
                    has_answered = True
                    yield chunk
            is_over = True
        except grpc.RpcError as error:
            # A lost connection says nothing about the request: it may still run.
            is_over = request.num_rows == 1 and error.code() is not grpc.StatusCode.UNAVAILABLE
            raise read_rpc_error(error, has_answered=has_answered) from error
        finally:
            if not is_over:
                call.cancel()
                self._stop_later(request.request_id)

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

    def _stop_later(self, request_id: str) -> None:
        task = asyncio.get_running_loop().create_task(self._stop(request_id))
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    async def _stop(self, request_id: str) -> None:
        for delay_s in STOP_DELAYS_S:
            await asyncio.sleep(delay_s)
            call = self._client.stream_infer(_one(request_id, encode_stop()), stream_timeout=STOP_TIMEOUT_S, headers=STREAM_HEADERS)
            try:
                async for _, error in call:
                    if error is not None:
                        _log.warning("the stop of request %s was refused: %s", request_id, error.message())
            except grpc.RpcError as error:
                # The server is gone, and the request with it; whoever watches the server deals with that.
                _log.warning("the stop of request %s was not delivered: %s", request_id, error.code())
                return


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
