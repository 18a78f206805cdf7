"""What every engine model of Triton does, whatever engine stands behind it: rows in, responses out, exactly one FINAL.

::

    execute ── rows ──► engine.submit ── sink ──► SenderThread ── RowEncoder ──► ResponseStream
       └─ stop=true ──► engine.cancel ▲                 ▲
    CancellationWatcher ──────────────┘      never the engine's thread
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import triton_python_backend_utils as pb_utils

from tandem.engine import Sink
from tandem.errors import EngineFailure, InvalidRequest, TandemError, Unsupported, from_wire
from tandem.triton.cancellation import CancellationWatcher
from tandem.triton.engine_request import EngineCall, is_stop, read_calls
from tandem.triton.engine_response import RowContext, RowEncoder, check_outputs
from tandem.triton.errors_table import from_exception
from tandem.triton.open_requests import OpenRequests
from tandem.triton.responses import ResponseStream, read_inputs
from tandem.triton.sender import SenderThread
from tandem.types import EngineRequest, RequestId, SequenceDelta


class Engine(Protocol):
    """What a front needs of an engine. Thread-safe."""

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        """Accept a request, or raise a TandemError and leave no trace of it."""
        ...

    def cancel(self, request_id: RequestId) -> bool:
        """End a request; its sink gets one last delta. False when no such request runs."""
        ...

    def shutdown(self) -> None:
        """End what still runs with an error."""
        ...


@dataclass(frozen=True, slots=True)
class FrontSettings:
    """``block_size``: tokens of a KV block, for the counts of blocks in responses."""

    name: str
    vocab_size: int
    block_size: int
    exclude_input_in_output: bool
    cancellation_check_period_ms: int


class EngineFront:
    """Base of the engine models. ``execute`` returns at once; answers come from the sender's thread."""

    def __init__(self, settings: FrontSettings, engine: Engine) -> None:
        """Takes over ``engine``: ``close`` shuts it down."""
        self._settings = settings
        self._engine = engine
        self._sender = SenderThread(f"tandem-{settings.name}-sender")
        self._watcher = CancellationWatcher(settings.cancellation_check_period_ms / 1e3)
        self._open: OpenRequests[_OpenRequest] = OpenRequests()
        self._serial = itertools.count()

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> None:
        for request in requests:
            stream = ResponseStream(request)
            try:
                self._accept(request, stream)
            except Exception as error:
                stream.fail(from_exception(error, f"the engine {self._settings.name}"))

    def close(self) -> None:
        """End what still runs with an error, then all threads. Triton has waited for it before (exit timeout, unload)."""
        self._engine.shutdown()
        self._sender.close()
        self._watcher.close()

    def _accept(self, request: pb_utils.InferenceRequest, stream: ResponseStream) -> None:
        inputs = read_inputs(request)
        request_id = request.request_id()
        if is_stop(inputs):
            self._stop(request_id)
            stream.finish()
            return
        _check_request_type(request)
        requested = frozenset(request.requested_output_names())
        check_outputs(requested)
        calls = read_calls(inputs, self._settings.vocab_size)
        opened = _OpenRequest(request_id, stream, len(calls), self)
        is_stopped = self._open.add(request_id, opened)
        opened.watch_key = self._watcher.watch(stream.is_cancelled, opened.cancel)
        try:
            for row, call in enumerate(calls):
                self._submit(opened, row, call, requested, is_batch=len(calls) > 1)
        except TandemError:
            opened.cancel()
            self.forget(opened)
            raise
        if is_stopped:
            opened.cancel()

    def _submit(self, opened: _OpenRequest, row: int, call: EngineCall, requested: frozenset[str], *, is_batch: bool) -> None:
        context = RowContext(
            batch_index=row if is_batch else None,
            requested_outputs=requested,
            exclude_input_default=self._settings.exclude_input_in_output,
            block_size=self._settings.block_size,
        )
        # Ids of Triton requests may be empty or used twice; the engine's own may not.
        engine_id = RequestId(f"{opened.request_id}#{next(self._serial)}")
        receiver = _Row(opened, RowEncoder(call, context))
        opened.engine_ids.append(engine_id)
        self._engine.submit(
            EngineRequest(engine_id, call.prompt_ids, call.sampling, call.cache, call.guide), partial(self._sender.put, receiver)
        )

    def _stop(self, request_id: str) -> None:
        if not request_id:
            raise InvalidRequest("stop", "true without a request id", "send it under the id of the request that is to end")
        opened = self._open.stop(request_id)
        if opened is not None:
            opened.cancel()

    def cancel(self, engine_id: RequestId) -> None:
        """For :class:`_OpenRequest`; an id that has ended is no error."""
        self._engine.cancel(engine_id)

    def forget(self, opened: _OpenRequest) -> None:
        """For :class:`_OpenRequest`, when its last row has ended."""
        self._watcher.forget(opened.watch_key)
        self._open.remove(opened.request_id, opened)


class _OpenRequest:
    """One Triton request while its rows run. ``rows_left`` belongs to the sender's thread."""

    def __init__(self, request_id: str, stream: ResponseStream, num_rows: int, model: EngineFront) -> None:
        self.request_id = request_id
        self.stream = stream
        self.rows_left = num_rows
        self.engine_ids: list[RequestId] = []
        self.watch_key = 0
        self._model = model

    def cancel(self) -> None:
        """End all rows at the engine's next step; each still gets its last response."""
        for engine_id in list(self.engine_ids):
            self._model.cancel(engine_id)

    def end_row(self) -> None:
        self.rows_left -= 1
        if self.rows_left == 0:
            self._model.forget(self)

    def end(self) -> None:
        """Give up on all rows."""
        self.cancel()
        self._model.forget(self)


class _Row:
    """The sender's view of one row."""

    def __init__(self, opened: _OpenRequest, encoder: RowEncoder) -> None:
        self._opened = opened
        self._encoder = encoder

    def take(self, deltas: Sequence[SequenceDelta]) -> None:
        stream, last = self._opened.stream, deltas[-1]
        if last.is_last:
            self._opened.end_row()
        is_final = last.is_last and self._opened.rows_left == 0
        if last.error is not None:
            stream.fail(_engine_error(last.error), is_final=is_final)
            return
        responses = self._encoder.take(deltas)
        for position, tensors in enumerate(responses):
            stream.send(tensors, is_final=is_final and position == len(responses) - 1)
        if is_final:
            stream.finish()  # without effect unless there was nothing to send

    def abandon(self, error: Exception) -> None:
        self._opened.end()
        self._opened.stream.fail(from_exception(error, "the answer"))


def _engine_error(text: str) -> TandemError:
    return from_wire(text) or EngineFailure(text)


def _check_request_type(request: pb_utils.InferenceRequest) -> None:
    """The one request parameter (not tensor) that TensorRT-LLM's backend reads. Raises: Unsupported."""
    parameters: dict[str, Any] = json.loads(request.parameters() or "{}")
    kind = parameters.get("request_type", "context_and_generation")
    if kind != "context_and_generation":
        raise Unsupported("request_type", kind, "this engine does prefill and decode in one place; leave it out")
