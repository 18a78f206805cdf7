"""An engine over TensorRT-LLM's ``LLM.generate_async``: the same requests, deltas and cancels as the CPU engine's.

One asyncio loop in one thread runs a task per request; the LLM itself batches them in flight.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tandem.engine import Sink
from tandem.engine.admission import AdmissionRules
from tandem.errors import EngineFailure, Overloaded, TandemError, to_wire
from tandem.triton.llmapi_calls import OutputReader, guide_arguments, sampling_arguments
from tandem.types import EngineRequest, FinishReason, RequestId, SequenceDelta

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LlmRuntime:
    """The parts of TensorRT-LLM that are used. ``dense_bias(pairs, vocab_size)`` makes its tensor of logit biases."""

    llm: Any
    sampling_params: Callable[..., Any]
    guided_params: Callable[..., Any]
    dense_bias: Callable[[tuple[tuple[int, float], ...], int], Any]


@dataclass(frozen=True, slots=True)
class LlmApiLimits:
    """``max_open``: requests that run and wait together; one more is refused. ``takes_salt``: KV blocks are separated by salt."""

    vocab_size: int
    tokens_per_block: int
    max_open: int
    takes_salt: bool


class _Open:
    """One running request. ``result`` belongs to the loop's thread."""

    def __init__(self, request: EngineRequest, sink: Sink) -> None:
        self.request = request
        self.sink = sink
        self.result: Any = None
        self.is_cancelled = False


class LlmApiEngine:
    """Implements :class:`tandem.triton.engine_front.Engine`. Thread-safe."""

    def __init__(self, runtime: LlmRuntime, rules: AdmissionRules, limits: LlmApiLimits, *, name: str) -> None:
        self._runtime = runtime
        self._rules = rules
        self._limits = limits
        self._lock = threading.Lock()  # guards the two below
        self._open: dict[RequestId, _Open] = {}
        self._is_closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        """Raises: InvalidRequest, Unsupported, ContextLengthExceeded; Overloaded when full or closing."""
        request = replace(request, sampling=self._rules.resolve(request))
        arguments = sampling_arguments(request.sampling)  # refuses now, not in the task
        if request.guide is not None:
            arguments["guided_decoding"] = self._runtime.guided_params(**guide_arguments(request.guide))
        if request.sampling.logit_bias:
            arguments["embedding_bias"] = self._runtime.dense_bias(request.sampling.logit_bias, self._limits.vocab_size)
        opened = _Open(request, sink)
        with self._lock:
            if self._is_closing:
                raise Overloaded("the engine shuts down; try again later")
            if len(self._open) >= self._limits.max_open:
                raise Overloaded(f"the engine is full ({self._limits.max_open} requests); try again later")
            self._open[request.request_id] = opened
        asyncio.run_coroutine_threadsafe(self._run(opened, self._runtime.sampling_params(**arguments)), self._loop)

    def cancel(self, request_id: RequestId) -> bool:
        with self._lock:
            opened = self._open.get(request_id)
        if opened is None:
            return False
        self._loop.call_soon_threadsafe(self._abort, opened)
        return True

    def shutdown(self) -> None:
        """End what still runs with an error, stop the loop, then the LLM with its workers."""
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        asyncio.run_coroutine_threadsafe(self._end_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._runtime.llm.shutdown()

    async def _run(self, opened: _Open, sampling_params: Any) -> None:
        """One request from start to its last delta. Raises nothing."""
        request = opened.request
        reader = OutputReader(request, self._limits.tokens_per_block)
        try:
            salt = {"cache_salt": request.cache.salt} if request.cache.salt and self._limits.takes_salt else {}
            opened.result = self._runtime.llm.generate_async(list(request.prompt_ids), sampling_params, streaming=True, **salt)
            if opened.is_cancelled:
                opened.result.abort()
            async for step in opened.result:
                self._hand_out(opened, reader.read(step.outputs, is_finished=False))
            self._hand_out(opened, reader.read(opened.result.outputs, is_finished=True))
            if not reader.has_ended:
                raise EngineFailure("the runtime ended an answer without a last part; try again")
        except asyncio.CancelledError:
            self._fail(opened, EngineFailure("the engine shuts down; try again"))
            raise
        except Exception as error:
            _log.exception("a request of the LLM API failed")
            self._fail(opened, error if isinstance(error, TandemError) else EngineFailure("the engine failed; try again"))
        finally:
            self._forget(opened)

    def _hand_out(self, opened: _Open, deltas: list[SequenceDelta]) -> None:
        """Whoever has the last delta may send the next request: the place is free before."""
        if deltas:
            if deltas[-1].is_last:
                self._forget(opened)
            opened.sink(deltas)

    def _fail(self, opened: _Open, error: TandemError) -> None:
        last = SequenceDelta(opened.request.request_id, 0, (), finish_reason=FinishReason.ERROR, is_last=True, error=to_wire(error))
        self._hand_out(opened, [last])

    def _forget(self, opened: _Open) -> None:
        with self._lock:
            self._open.pop(opened.request.request_id, None)

    def _abort(self, opened: _Open) -> None:
        """In the loop's thread. A request that has not begun yet is aborted when it does."""
        opened.is_cancelled = True
        if opened.result is not None:
            opened.result.abort()

    async def _end_all(self) -> None:
        current = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
