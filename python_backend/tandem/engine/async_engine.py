"""One thread that owns an :class:`LLMEngine`; any thread may submit, cancel and look.

::

    callers ── submit, cancel ──► commands (lock) ──► engine thread: add, cancel, step ──► sink(deltas) per request
                                                      └─ after each step: stats snapshot ──► stats()

A guided request waits for its grammar in a worker of the compiler before it becomes a command; it is accepted, counts as waiting,
and can be cancelled like any other.

Commands are taken at every step boundary, so a cancel takes effect within one step. A sink is called from the engine thread with
all deltas that one step made for one request; it must hand them on (to a queue, to another thread) and never block. Every request
that ``submit`` accepted gets exactly one delta with ``is_last``, whatever happens; after it the sink is not called again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from time import monotonic, perf_counter, time

from tandem.engine.engine import LLMEngine
from tandem.engine.metrics import EngineStats
from tandem.engine.sequence import Request
from tandem.errors import EngineFailure, InvalidRequest, Overloaded, TandemError, to_wire
from tandem.guided.compiler import Grammar
from tandem.types import EngineRequest, FinishReason, RequestId, SequenceDelta

_log = logging.getLogger(__name__)

Sink = Callable[[Sequence[SequenceDelta]], None]
"""Takes the deltas of one request of one step, in the engine thread; must not block. If it raises, the request is cancelled."""


@dataclass(frozen=True, slots=True)
class _Cancel:
    request_id: RequestId


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why nothing is accepted any more; makes a new exception for every caller."""

    kind: type[Overloaded] | type[EngineFailure]
    message: str

    def error(self) -> TandemError:
        return self.kind(self.message)


@dataclass(frozen=True, slots=True)
class _Open:
    """A request whose last delta is still owed."""

    request: Request
    sink: Sink


class AsyncEngine:
    """Thread-safe face of an engine. Starts its thread when built; ``shutdown`` ends it."""

    def __init__(self, engine: LLMEngine, *, name: str = "tandem-engine") -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # All of these are guarded by the lock.
        self._commands: list[Request | _Cancel] = []
        self._open: dict[RequestId, _Open] = {}
        self._compiling: dict[RequestId, Request] = {}  # accepted, their grammars not there yet
        self._ended_early: set[RequestId] = set()  # cancelled while they waited; the engine does not know yet
        self._num_unseen = 0  # accepted requests that the snapshot does not count yet
        self._num_refused = 0
        self._last_cancel_time_s = 0.0
        self._snapshot = engine.stats()
        self._num_seats_free = engine.config.max_num_seqs
        self._refusal: _Refusal | None = None  # set when nothing is accepted any more
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def engine_thread_name(self) -> str:
        return self._thread.name

    @property
    def is_alive(self) -> bool:
        """True while requests can be accepted."""
        return self._refusal is None and self._thread.is_alive()

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        """Accept a request, or raise and leave no trace of it.

        Raises: InvalidRequest (also for an id that is in use), ContextLengthExceeded; Overloaded when the waiting queue is full or
        the engine shuts down; EngineFailure when its thread has died.
        """
        prepared = self._engine.prepare(request, with_grammar=False)
        with self._lock:
            if self._refusal is not None:
                self._num_refused += 1
                raise self._refusal.error()
            if request.request_id in self._open or request.request_id in self._ended_early:
                raise InvalidRequest("request_id", request.request_id, "a request with this id is running; give each its own")
            max_queue_size = self._engine.config.max_queue_size
            if self._num_waiting >= max_queue_size + self._num_seats_free:
                self._num_refused += 1
                raise Overloaded(f"the waiting queue is full ({max_queue_size} requests); try again later")
            self._open[request.request_id] = _Open(prepared, sink)
            self._num_unseen += 1
            if prepared.waits_for_grammar:
                self._compiling[request.request_id] = prepared
            else:
                self._commands.append(prepared)
                self._changed.notify_all()
        if prepared.waits_for_grammar:
            self._compile(prepared)

    def cancel(self, request_id: RequestId) -> bool:
        """End a request; its sink gets the one last delta (CANCELLED). False when no such request runs.

        One that waits and holds no blocks has its last delta before this returns; one that runs gets it at the end of its step.
        """
        with self._lock:
            found = self._open.get(request_id)
            if found is None:
                return False
            is_compiling = self._compiling.pop(request_id, None) is not None
            is_waiting = not found.request.has_blocks
            if is_compiling:  # the engine has never heard of it
                self._num_unseen -= 1
            else:
                self._commands.append(_Cancel(request_id))
            if is_waiting:
                del self._open[request_id]
                if not is_compiling:
                    self._ended_early.add(request_id)
                self._last_cancel_time_s = time()
            self._changed.notify_all()
        if is_waiting:
            self._call(found.sink, [SequenceDelta(request_id, 0, (), finish_reason=FinishReason.CANCELLED, is_last=True)])
        return True

    def stats(self) -> EngineStats:
        """The state at the last step boundary; requests accepted since then count as waiting."""
        with self._lock:
            return replace(
                self._snapshot,
                num_waiting=self._num_waiting,
                num_refused=self._num_refused,
                last_cancel_time_s=self._last_cancel_time_s,
            )

    @property
    def _num_waiting(self) -> int:
        return max(self._snapshot.num_waiting + self._num_unseen - len(self._ended_early), 0)

    def shutdown(self, grace_s: float = 0.0) -> None:
        """Accept nothing more, let running requests end for up to ``grace_s`` seconds, end the rest with an error, stop the thread.

        Returns when the thread has ended. Calling it again is harmless. Must not be called from a sink.
        """
        deadline = monotonic() + grace_s
        with self._lock:
            if self._refusal is None:
                self._refusal = _Refusal(Overloaded, "the engine is shutting down; try another one or try again later")
            while self._open and self._thread.is_alive() and (left := deadline - monotonic()) > 0:
                self._changed.wait(left)
            self._is_stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _compile(self, prepared: Request) -> None:
        """Have the guide compiled; what follows runs in a worker, or here when the grammar is cached."""
        guide, grammars = prepared.guide, self._engine.grammars
        assert guide is not None
        assert grammars is not None

        def then(outcome: Grammar | TandemError) -> None:
            if isinstance(outcome, Grammar):
                prepared.use_grammar(outcome)
                self._enter(prepared)
            else:
                self._refuse(prepared, outcome)

        grammars.submit(guide, then)

    def _enter(self, prepared: Request) -> None:
        with self._lock:
            if self._compiling.get(prepared.request_id) is not prepared:  # cancelled, or the engine has stopped
                return
            del self._compiling[prepared.request_id]
            self._commands.append(prepared)
            self._changed.notify_all()

    def _refuse(self, prepared: Request, error: TandemError) -> None:
        """Give a request that cannot run its one last delta."""
        request_id = prepared.request_id
        with self._lock:
            if self._compiling.get(request_id) is not prepared:
                return
            del self._compiling[request_id]
            self._num_unseen -= 1
            found = self._open.pop(request_id)
            self._changed.notify_all()
        last = SequenceDelta(request_id, 0, (), finish_reason=FinishReason.ERROR, is_last=True, error=to_wire(error))
        self._call(found.sink, [last])

    # --- engine thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (commands := self._next_commands()) is not None:
                self._iterate(commands)
            self._hand_out(self._engine.fail_all(Overloaded("the engine was shut down before this request was finished")))
        except Exception as error:  # a bug of ours: end everything in order rather than leave callers waiting
            _log.exception("the engine thread died")
            self._die(error)
            return
        self._end_all(Overloaded("the engine was shut down before this request was started"))

    def _next_commands(self) -> list[Request | _Cancel] | None:
        """Wait until there is something to do; None when the thread is to stop."""
        with self._lock:
            if not self._engine.has_work and not self._commands and self._engine.reclaim_leaked_blocks():
                self._snapshot = self._engine.stats()
            while not self._is_stopping and not self._commands and not self._engine.has_work:
                self._changed.wait()
            if self._is_stopping:
                return None
            commands, self._commands = self._commands, []
            return commands

    def _iterate(self, commands: list[Request | _Cancel]) -> None:
        cancelled: list[SequenceDelta] = []
        for command in commands:
            if isinstance(command, Request):
                self._engine.add(command)
            elif (last := self._engine.cancel(command.request_id)) is not None:
                cancelled.append(last)
        if cancelled:  # told at once: the step that follows may take long and is none of their business
            self._hand_out(cancelled)
        deltas = self._step()
        started = perf_counter()
        self._hand_out(deltas)
        self._engine.add_outside_time(perf_counter() - started)

    def _step(self) -> list[SequenceDelta]:
        try:
            return self._engine.step()
        except Exception:
            # A bug of ours outside the forward pass: nobody knows whose request it was, so all end and the engine starts afresh.
            _log.exception("a step failed; all requests of this engine end")
            return self._engine.fail_all(EngineFailure("the engine failed and started afresh; try again"))

    def _hand_out(self, deltas: Iterable[SequenceDelta]) -> None:
        """Publish the snapshot, then call the sinks, so that a caller who has its last delta sees its blocks as free."""
        by_request: dict[RequestId, list[SequenceDelta]] = {}
        for delta in deltas:
            by_request.setdefault(delta.request_id, []).append(delta)
        calls: list[tuple[Sink, list[SequenceDelta]]] = []
        with self._lock:
            self._snapshot = self._engine.stats()
            self._num_seats_free = self._engine.num_seats_free
            self._num_unseen = len(self._compiling) + sum(1 for command in self._commands if isinstance(command, Request))
            for request_id, of_request in by_request.items():
                is_last = of_request[-1].is_last
                if request_id in self._ended_early:  # its sink has had its last delta
                    if is_last:
                        self._ended_early.discard(request_id)
                    continue
                if of_request[-1].finish_reason is FinishReason.CANCELLED:
                    self._last_cancel_time_s = time()
                found = self._open.pop(request_id) if is_last else self._open[request_id]
                calls.append((found.sink, of_request))
            self._changed.notify_all()
        for sink, of_request in calls:
            self._call(sink, of_request)

    def _call(self, sink: Sink, deltas: list[SequenceDelta]) -> None:
        try:
            sink(deltas)
        except Exception:
            request_id = deltas[0].request_id
            _log.exception("the sink of request %s failed; the request is cancelled", request_id)
            self.cancel(request_id)

    def _die(self, error: Exception) -> None:
        refusal = _Refusal(EngineFailure, f"the engine stopped after an inner failure ({type(error).__name__}); restart it")
        with self._lock:
            self._refusal = refusal
        self._end_all(refusal.error())

    def _end_all(self, error: TandemError) -> None:
        """Give every request that is still open its last delta, without the engine."""
        with self._lock:
            still_open, self._open = self._open, {}
            self._ended_early.clear()
            self._compiling.clear()
            self._commands = []
            self._num_unseen = 0
            self._changed.notify_all()
        for request_id, found in still_open.items():
            last = SequenceDelta(request_id, 0, (), finish_reason=FinishReason.ERROR, is_last=True, error=to_wire(error))
            self._call(found.sink, [last])
