"""The backend in production: the ensemble ``tandem`` of a Triton server, one gRPC stream per request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from tandem.errors import EngineFailure, Overloaded, TandemError, from_wire
from tandem.protocol import ENGINE_MODELS, PREPROCESSING_MODEL, ROUTER_MODEL, TANDEM_MODEL
from tandem_client.tensors import decode_response, encode_request, encode_stop
from tandem_client.text import TextChunk, TextRequest
from tandem_gateway.backend import BackendHealth

_log = logging.getLogger(__name__)

# Asks Triton to give errors of a stream as gRPC status codes.
_STREAM_HEADERS = {"triton_grpc_error": "true"}
# An ensemble does not pass a cancel on to a step that runs, so the router is told by the ``stop`` tensor. A stop that arrives while
# its request is between two steps finds nothing to stop: it is sent again a little later. Unknown ids are no error.
_STOP_DELAYS_S = (0.0, 0.05, 0.25)
_STOP_TIMEOUT_S = 5.0
_HEALTH_TIMEOUT_S = 2.0
_METRICS_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class TritonAddress:
    """Where Triton listens: ``grpc`` is host:port, ``metrics_url`` is an address or None."""

    grpc: str
    metrics_url: str | None = None
    models: tuple[str, ...] = (TANDEM_MODEL, PREPROCESSING_MODEL, ROUTER_MODEL, *ENGINE_MODELS)


class TritonBackend:
    """A :class:`tandem_gateway.backend.TextBackend`. Connections are opened at the first use, inside the event loop."""

    def __init__(self, address: TritonAddress) -> None:
        self._address = address
        self._client: Any = None
        self._http: httpx.AsyncClient | None = None
        self._stops: set[asyncio.Task[None]] = set()

    async def generate(self, request: TextRequest) -> AsyncIterator[TextChunk]:
        call = self._triton().stream_infer(_one(TANDEM_MODEL, request.request_id, encode_request(request)), headers=_STREAM_HEADERS)
        has_answered = is_done = False
        try:
            async for result, error in call:
                if error is not None:
                    raise _read_error(error.message())
                chunk = decode_response(result.get_response())
                if chunk is not None:
                    has_answered = True
                    yield chunk
            is_done = True
        except grpc.RpcError as error:
            raise _read_rpc_error(error, has_answered=has_answered) from error
        finally:
            if not is_done:
                call.cancel()
                self._stop_later(request.request_id)

    async def health(self) -> BackendHealth:
        client = self._triton()
        try:
            if await client.is_server_ready(client_timeout=_HEALTH_TIMEOUT_S):
                return BackendHealth(is_live=True, parts=dict.fromkeys(self._address.models, True))
            ready = await asyncio.gather(
                *(client.is_model_ready(model, client_timeout=_HEALTH_TIMEOUT_S) for model in self._address.models)
            )
        except InferenceServerException:
            return BackendHealth(is_live=False, parts=dict.fromkeys(self._address.models, False))
        return BackendHealth(is_live=True, parts=dict(zip(self._address.models, ready, strict=True)))

    async def metrics_text(self) -> str:
        if self._address.metrics_url is None:
            return ""
        if self._http is None:
            self._http = httpx.AsyncClient(timeout=_METRICS_TIMEOUT_S, trust_env=False)
        try:
            response = await self._http.get(self._address.metrics_url)
            response.raise_for_status()
        except httpx.HTTPError as error:
            raise EngineFailure(f"the metrics of the model server cannot be read ({type(error).__name__})") from error
        return response.text

    async def close(self) -> None:
        if self._stops:
            await asyncio.wait(self._stops, timeout=_STOP_TIMEOUT_S)
        if self._http is not None:
            await self._http.aclose()
        if self._client is not None:
            await self._client.close()

    def _triton(self) -> Any:
        if self._client is None:
            self._client = triton.InferenceServerClient(self._address.grpc)
        return self._client

    def _stop_later(self, request_id: str) -> None:
        task = asyncio.get_running_loop().create_task(self._stop(request_id))
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    async def _stop(self, request_id: str) -> None:
        for delay_s in _STOP_DELAYS_S:
            await asyncio.sleep(delay_s)
            call = self._triton().stream_infer(
                _one(TANDEM_MODEL, request_id, encode_stop()), stream_timeout=_STOP_TIMEOUT_S, headers=_STREAM_HEADERS
            )
            try:
                async for _, error in call:
                    if error is not None:
                        _log.warning("the stop of request %s was refused: %s", request_id, error.message())
            except grpc.RpcError as error:
                # The server is gone, and the request with it; the supervisor and the health check deal with that.
                _log.warning("the stop of request %s was not delivered: %s", request_id, error.code())
                return


async def _one(model: str, request_id: str, inputs: list[Any]) -> AsyncIterator[dict[str, Any]]:
    """A stream of one request. Its end tells Triton that no more will come: the answers then end after the last response."""
    yield {"model_name": model, "request_id": request_id, "inputs": inputs}


def _read_error(text: str) -> TandemError:
    known = from_wire(text)
    if known is not None:
        return known
    # A text of Triton's own may name inner parts: it goes to the log, the caller gets a sentence.
    _log.error("the model server gave an error outside our table: %s", text)
    return EngineFailure("the model server failed; try again")


def _read_rpc_error(error: Any, *, has_answered: bool) -> TandemError:
    details = error.details() or ""
    known = from_wire(details)
    if known is not None:
        return known
    if error.code() is grpc.StatusCode.UNAVAILABLE and not has_answered:
        _log.warning("the model server is not available: %s", details)
        return Overloaded("the model server is not available at the moment; try again")
    return _read_error(f"{error.code()}: {details}")
