"""One thread that asks Triton whether the clients of open requests are still there."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Watched:
    is_cancelled: Callable[[], bool]
    on_cancel: Callable[[], None]


class CancellationWatcher:
    """Polls every ``period_s`` while something is watched, sleeps otherwise. Thread-safe; owns its thread until ``close``."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._changed = threading.Condition()
        self._watched: dict[int, _Watched] = {}  # guarded by the condition, as are the next two
        self._next_key = 0
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="tandem-cancellation", daemon=True)
        self._thread.start()

    def watch(self, is_cancelled: Callable[[], bool], on_cancel: Callable[[], None]) -> int:
        """Call ``on_cancel`` once, from the watcher's thread, when ``is_cancelled`` says so. Returns the key for ``forget``."""
        with self._changed:
            self._next_key += 1
            self._watched[self._next_key] = _Watched(is_cancelled, on_cancel)
            self._changed.notify()
            return self._next_key

    def forget(self, key: int) -> None:
        """Stop watching; a key that is not known (any more) is no error."""
        with self._changed:
            self._watched.pop(key, None)

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing or self._watched)
                self._changed.wait_for(lambda: self._is_closing, timeout=self._period_s)
                if self._is_closing:
                    return
                watched = list(self._watched.items())
            for key, entry in watched:
                self._look(key, entry)

    def _look(self, key: int, entry: _Watched) -> None:
        try:
            if entry.is_cancelled():
                self.forget(key)
                entry.on_cancel()
        except Exception:  # one request whose state cannot be read must not end the watch over all others
            _log.exception("looking for a cancelled request failed; it is not watched any more")
            self.forget(key)
