"""gRPC with tritonclient, straight to Triton: no gateway in between, so no keys and no OpenAI defaults."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, contextmanager
from typing import Any

import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tandem.errors import Overloaded, TandemError
from tandem.protocol import TANDEM_MODEL
from tandem_client.errors import ApiError, ConnectionFailed, api_error
from tandem_client.grpc_wire import ChunkReader, text_request
from tandem_client.model_names import MODELS
from tandem_client.results import Call, Event
from tandem_client.tensors import decode_response, encode_request, encode_stop
from tandem_client.text import TextRequest
from tandem_client.triton import STOP_DELAYS_S, STOP_TIMEOUT_S, AsyncTriton, read_error

_log = logging.getLogger(__name__)

# Nothing for this long means that the connection is lost; gRPC itself notices most losses much earlier.
_SILENCE_S = 120.0
_NOT_READY = "the model tandem is not ready"


class AsyncGrpcTransport:
    def __init__(self, address: str) -> None:
        self._triton = AsyncTriton(address)

    async def stream(self, call: Call) -> AsyncGenerator[Event, None]:
        request = text_request(call)
        reader = ChunkReader(request.request_id, call.tools)
        try:
            async with aclosing(self._triton.generate(request)) as chunks:
                async for chunk in chunks:
                    for event in reader.read(chunk):
                        yield event
        except TandemError as error:
            raise api_error(error) from error
        yield reader.usage()

    async def models(self) -> tuple[str, ...]:
        try:
            ready = await self._triton.ready_models((TANDEM_MODEL,))
        except Overloaded as error:
            raise ConnectionFailed(error.message) from error
        return _all_models(is_ready=ready[TANDEM_MODEL])

    async def close(self) -> None:
        await self._triton.close()


class GrpcTransport:
    """Blocking. Each call has a connection of its own, because a tritonclient holds one stream at a time."""

    def __init__(self, address: str) -> None:
        self._address = address

    def stream(self, call: Call) -> Generator[Event, None, None]:
        request = text_request(call)
        reader = ChunkReader(request.request_id, call.tools)
        try:
            with self._exchange(request) as arrivals:
                for response in arrivals.read():
                    chunk = decode_response(response)
                    if chunk is not None:
                        yield from reader.read(chunk)
        except TandemError as error:
            raise api_error(error) from error
        yield reader.usage()

    def models(self) -> tuple[str, ...]:
        try:
            with triton.InferenceServerClient(self._address) as client:
                is_ready = client.is_model_ready(TANDEM_MODEL, client_timeout=STOP_TIMEOUT_S)
        except InferenceServerException as error:
            raise _failed(error) from error
        return _all_models(is_ready=is_ready)

    def close(self) -> None:
        """Nothing is kept between calls."""

    @contextmanager
    def _exchange(self, request: TextRequest) -> Generator[_Arrivals, None, None]:
        """A stream with one request on it. Leaving it early stops the request and waits for its end."""
        arrivals = _Arrivals()
        with triton.InferenceServerClient(self._address) as client:
            client.start_stream(arrivals.put)
            try:
                client.async_stream_infer(
                    TANDEM_MODEL, encode_request(request), request_id=request.request_id, enable_empty_final_response=True
                )
            except InferenceServerException:
                # The stream broke before the request was on it; what broke it stands among the arrivals, for the reader.
                _log.debug("request %s was not sent", request.request_id)
            try:
                yield arrivals
            finally:
                self._wind_down(request.request_id, arrivals)
                client.stop_stream(cancel_requests=not arrivals.have_ended)

    def _wind_down(self, request_id: str, arrivals: _Arrivals) -> None:
        for delay_s in STOP_DELAYS_S:
            arrivals.drain(delay_s)
            if arrivals.have_ended:
                return
            self._stop(request_id)
        arrivals.drain(STOP_TIMEOUT_S)

    def _stop(self, request_id: str) -> None:
        try:
            with triton.InferenceServerClient(self._address) as client:
                client.start_stream(_note_stop_error, stream_timeout=STOP_TIMEOUT_S)
                client.async_stream_infer(TANDEM_MODEL, encode_stop(), request_id=request_id)
                client.stop_stream()
        except InferenceServerException:
            # The server is gone, and the request with it.
            _log.warning("the stop of request %s was not delivered", request_id)


class _Arrivals:
    """What comes on one stream, handed over by tritonclient's thread."""

    def __init__(self) -> None:
        self._queue: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.have_ended = False

    def put(self, result: Any, error: Any) -> None:
        self._queue.put((result, error))

    def read(self) -> Generator[Any, None, None]:
        """Responses up to the final one. Raises: ClientError."""
        while not self.have_ended:
            try:
                result, error = self._queue.get(timeout=_SILENCE_S)
            except queue.Empty:
                raise ConnectionFailed(f"the server sent nothing for {_SILENCE_S:g} s") from None
            self._note(result, error)
            if error is not None:
                raise _failed(error)
            yield result.get_response()

    def drain(self, timeout_s: float) -> None:
        """Read on without keeping anything, until the end or until the time is over."""
        end = time.monotonic() + timeout_s
        try:
            while not self.have_ended:
                self._note(*self._queue.get(timeout=max(0.0, end - time.monotonic())))
        except queue.Empty:
            return

    def _note(self, result: Any, error: Any) -> None:
        self.have_ended = error is not None or _is_final(result.get_response())


def _note_stop_error(result: Any, error: InferenceServerException | None) -> None:
    if error is not None:
        _log.warning("a stop was refused: %s", error.message())


def _is_final(response: Any) -> bool:
    return bool(response.parameters["triton_final_response"].bool_param)


def _failed(error: InferenceServerException) -> ApiError | ConnectionFailed:
    if error.status() == "StatusCode.UNAVAILABLE":
        return ConnectionFailed("no answer from the model server; is it running?")
    return api_error(read_error(error.message()))


def _all_models(*, is_ready: bool) -> tuple[str, ...]:
    if not is_ready:
        raise ApiError(_NOT_READY, status=503, code="overloaded")
    return MODELS
