"""Where each conversation was last, so that tool loops and long prefixes stay on the engine that has them cached."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from tandem.routing.policy import SessionHint


class SessionStore:
    """Thread-safe and bounded: the session that was not heard of for longest is forgotten first, each after ``ttl_s``.

    Sessions of different tenants never meet, whatever they are called; names are kept as hashes only.
    """

    def __init__(self, max_sessions: int, ttl_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._max_sessions = max_sessions
        self._ttl_s = ttl_s
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[SessionHint, float]] = OrderedDict()

    def find(self, cache_salt: str, session: str) -> SessionHint | None:
        """None for a session that is unknown or has no name."""
        if not session:
            return None
        with self._lock:
            found = self._known.get(_key(cache_salt, session))
            return found[0] if found is not None and self._clock_s() - found[1] <= self._ttl_s else None

    def note(self, cache_salt: str, session: str, engine: str, num_tokens: int) -> None:
        """This session is on ``engine``, which now holds ``num_tokens`` of it."""
        if not session:
            return
        key = _key(cache_salt, session)
        with self._lock:
            self._known[key] = (SessionHint(engine, num_tokens), self._clock_s())
            self._known.move_to_end(key)
            while len(self._known) > self._max_sessions:
                self._known.popitem(last=False)

    def __len__(self) -> int:
        with self._lock:
            return len(self._known)


def _key(cache_salt: str, session: str) -> bytes:
    # The salt comes first with its length, so that no pair of texts can be mistaken for another.
    return hashlib.blake2b(f"{len(cache_salt)}:{cache_salt}{session}".encode(), digest_size=16).digest()
