"""Which requests are open under which Triton request id, so that a ``stop`` finds them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_EARLY_STOP_S = 10.0
_MAX_REMEMBERED = 1024


class OpenRequests(Generic[T]):
    """Thread-safe. As in TensorRT-LLM's backend the newest request owns an id that is used twice.

    A stop may overtake the request that it names, since the two travel on different threads. It is remembered for a few seconds
    and hits the request when it comes; a stop that comes after the end is told apart by the ids that ended recently.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._by_id: dict[str, T] = {}
        self._early_stops: OrderedDict[str, float] = OrderedDict()
        self._ended: OrderedDict[str, float] = OrderedDict()

    def add(self, request_id: str, request: T) -> bool:
        """Register; the empty id is not kept. True when a stop for it has come already."""
        if not request_id:
            return False
        with self._lock:
            self._by_id[request_id] = request
            return self._is_recent(self._early_stops, request_id) and self._early_stops.pop(request_id, None) is not None

    def remove(self, request_id: str, request: T) -> None:
        """Forget an ended request; one that does not own its id (any more) is no error."""
        with self._lock:
            if self._by_id.get(request_id) is request:
                del self._by_id[request_id]
                self._remember(self._ended, request_id)

    def stop(self, request_id: str) -> T | None:
        """The request to stop, or None when no such one is open (yet)."""
        with self._lock:
            request = self._by_id.get(request_id)
            if request is None and not self._is_recent(self._ended, request_id):
                self._remember(self._early_stops, request_id)
            return request

    def __len__(self) -> int:
        with self._lock:
            return len(self._by_id)

    def _is_recent(self, times: OrderedDict[str, float], request_id: str) -> bool:
        added_at = times.get(request_id)
        return added_at is not None and self._clock() - added_at <= _EARLY_STOP_S

    def _remember(self, times: OrderedDict[str, float], request_id: str) -> None:
        times.pop(request_id, None)
        times[request_id] = self._clock()
        while len(times) > _MAX_REMEMBERED:
            times.popitem(last=False)
