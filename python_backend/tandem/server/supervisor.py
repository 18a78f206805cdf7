"""Keeps one tritonserver running: starts it, watches it and its model processes, starts it again with a growing pause.

What Triton 2.51 does when a model's process dies (tried with kill -9): readiness stays true, requests that were running in it
never end, BLS parents of those wait for ever, and new requests get "Stub process is not healthy". Loading the model again does
nothing unless it is unloaded first, and even then nobody who waits is freed. So the whole server is restarted, and every waiting
caller gets an error.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from tandem.errors import SetupError
from tandem.server.stubs import Stub
from tandem.server.triton_process import TritonServer

_log = logging.getLogger(__name__)
_POLL_S = 0.25


class ServerState(str, Enum):
    """``ready`` is the only one in which requests are answered."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    RECOVERING = "recovering"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SupervisorConfig:
    """``start_timeout_s``: how long all models may take to load.

    Pauses double from ``first_backoff_s`` to ``max_backoff_s``; a server that was ready for ``healthy_after_s`` starts anew.
    """

    start_timeout_s: float = 300.0
    first_backoff_s: float = 0.5
    max_backoff_s: float = 30.0
    healthy_after_s: float = 60.0


class Supervisor:
    """Owns a :class:`TritonServer` and the thread that watches it. Thread-safe."""

    def __init__(
        self,
        server: TritonServer,
        config: SupervisorConfig | None = None,
        on_event: Callable[[str], None] = _log.info,
        on_progress: Callable[[str], None] = _log.debug,
    ) -> None:
        """``on_event`` gets one line per fault and recovery, ``on_progress`` one per model that is loaded.

        Both are called from the supervisor's thread.
        """
        self._server = server
        self._config = config or SupervisorConfig()
        self._on_event = on_event
        self._on_progress = on_progress
        self._changed = threading.Condition()
        # Guarded by the condition.
        self._state = ServerState.STOPPED
        self._error: SetupError | None = None
        self._num_restarts = 0
        self._is_stopping = False
        self._stop_grace_s: float | None = None
        self._thread: threading.Thread | None = None
        self._stubs: frozenset[Stub] = frozenset()  # of the supervisor's thread

    @property
    def state(self) -> ServerState:
        return self._state

    @property
    def num_restarts(self) -> int:
        return self._num_restarts

    def ready(self) -> bool:
        """True when the server and all its model processes were alive and ready at the last look."""
        return self._state is ServerState.READY

    def start(self, timeout_s: float | None = None) -> None:
        """Start and wait until everything is ready.

        Raises: SetupError when the machine is not right, a model does not load, the time is over or ``stop`` is called meanwhile;
        nothing runs then.
        """
        with self._changed:
            assert self._thread is None, "a supervisor is started once"
            self._state = ServerState.STARTING
            self._thread = threading.Thread(target=self._run, name="tandem-supervisor", daemon=True)
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._state is not ServerState.STARTING, timeout_s)
            state, error = self._state, self._error
        if state is ServerState.STOPPED:
            raise SetupError("Triton was stopped while it started.")
        if state is not ServerState.READY:
            self.stop(0.0)
            raise error or SetupError(f"Triton was not ready in time; see {self._server.config.log_file}.")

    def wait_until(self, state: ServerState, timeout_s: float) -> bool:
        """Block until the state is reached; False when the time is over."""
        with self._changed:
            return self._changed.wait_for(lambda: self._state is state, timeout_s)

    def stop(self, grace_s: float | None = None) -> None:
        """Let running requests end within the grace period, then end the server. Harmless when it does not run."""
        with self._changed:
            thread = self._thread
            self._is_stopping = True
            self._stop_grace_s = grace_s
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    # --- supervisor's thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if self._first_start():
                self._watch()
        except Exception as error:  # a disk that is full, a bug of ours: nobody else would notice that nothing is watched any more
            _log.exception("the supervisor failed; the server is stopped")
            self._fail(SetupError(f"Triton could not be started or watched: {error}."))
        finally:
            self._server.stop(self._stop_grace_s)
            if self._state is not ServerState.FAILED:
                self._set(ServerState.STOPPED)

    def _first_start(self) -> bool:
        """A server that does not come up the first time is not tried again: the fault will not go away by itself."""
        try:
            self._server.start()
            if self._wait_ready():
                self._set(ServerState.READY)
                return True
            if not self._is_stopping:
                self._fail(SetupError(self._why_not_ready()))
        except SetupError as error:
            self._fail(error)
        return False

    def _watch(self) -> None:
        backoff_s, ready_since = self._config.first_backoff_s, time.monotonic()
        while not self._pause(_POLL_S):
            fault = self._fault() if self.ready() else "the server did not come up"
            if fault is None:
                continue
            if time.monotonic() - ready_since >= self._config.healthy_after_s:
                backoff_s = self._config.first_backoff_s
            self._set(ServerState.RECOVERING)
            self._on_event(f"{fault}; the server is started again in {backoff_s:g} s")
            self._server.stop(0.0)
            if self._pause(backoff_s):
                return
            backoff_s = min(backoff_s * 2, self._config.max_backoff_s)
            if self._start_again():
                ready_since = time.monotonic()
                self._set(ServerState.READY)
                self._on_event("the server is ready again")

    def _start_again(self) -> bool:
        with self._changed:
            self._num_restarts += 1
        try:
            self._server.start()
        except SetupError as error:
            self._on_event(error.message)
            return False
        return self._wait_ready()

    def _wait_ready(self) -> bool:
        """Until the server is ready; False when it ended, the time is over or ``stop`` was called."""
        deadline, num_told = time.monotonic() + self._config.start_timeout_s, 0
        while self._server.is_running() and time.monotonic() < deadline:
            loaded = self._server.loaded_models()
            for name in loaded[num_told:]:
                self._on_progress(f"{name} is loaded")
            num_told = len(loaded)
            if self._server.is_ready():
                self._stubs = self._server.stubs()
                return True
            if self._pause(_POLL_S):
                break
        return False

    def _fault(self) -> str | None:
        """What has died since the server was ready, in words."""
        if not self._server.is_running():
            code = self._server.exit_code()
            return "tritonserver is not running" if code is None else f"tritonserver ended with code {code}"
        lost = self._stubs - self._server.still_running(self._stubs)
        if lost:
            return "the process of " + " and ".join(sorted(stub.instance for stub in lost)) + " died"
        return None

    def _why_not_ready(self) -> str:
        reasons = self._server.load_errors()
        if reasons:
            return f"Triton did not start: {reasons[0]} (log: {self._server.config.log_file})"
        what = "did not get ready in time" if self._server.is_running() else f"ended with code {self._server.exit_code()}"
        return f"Triton {what}; see {self._server.config.log_file}."

    def _pause(self, seconds: float) -> bool:
        """Sleep; True as soon as ``stop`` is called."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_stopping, seconds)

    def _fail(self, error: SetupError) -> None:
        self._error = error
        self._set(ServerState.FAILED)

    def _set(self, state: ServerState) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()
