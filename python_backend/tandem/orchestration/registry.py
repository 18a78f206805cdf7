"""Which flows run under which request id, so that a stop finds them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from tandem.orchestration.flow import Flow

_EARLY_STOP_S = 10.0
_MAX_REMEMBERED = 1024


class FlowRegistry:
    """Thread-safe. Flows without a request id are not kept: nobody can name them.

    A stop may overtake its request, which is still being tokenized when it arrives. Such a stop is remembered for a few seconds
    and then hits the request. A stop that comes too late is told apart by the ids that ended recently, so that it cannot hit a
    later request under the same id.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards all below
        self._running: dict[str, list[Flow]] = {}
        self._early_stops = _RecentIds()
        self._ended = _RecentIds()

    def add(self, flow: Flow) -> None:
        """Register a flow before it runs; one that was stopped already is cancelled."""
        request_id = flow.request.request_id
        if not request_id:
            return
        with self._lock:
            self._running.setdefault(request_id, []).append(flow)
            is_stopped = self._early_stops.has(request_id, self._clock())
        if is_stopped:
            flow.cancel()

    def remove(self, flow: Flow) -> None:
        """Forget a flow that has ended. Flows that are not registered are no error."""
        request_id = flow.request.request_id
        with self._lock:
            flows = self._running.get(request_id)
            if flows is None or flow not in flows:
                return
            flows.remove(flow)
            if not flows:
                del self._running[request_id]
                self._early_stops.discard(request_id)
                self._ended.add(request_id, self._clock())

    def stop(self, request_id: str) -> int:
        """Cancel every flow under ``request_id``; returns how many. Unknown ids are no error, the empty one hits nothing."""
        with self._lock:
            flows = list(self._running.get(request_id, ()))
            now = self._clock()
            if request_id and not flows and not self._ended.has(request_id, now):
                self._early_stops.add(request_id, now)
        for flow in flows:
            flow.cancel()
        return len(flows)

    @property
    def num_running(self) -> int:
        """Registered flows; 0 when idle."""
        with self._lock:
            return sum(len(flows) for flows in self._running.values())


class _RecentIds:
    """Ids of the last few seconds, bounded in number; the oldest goes first. Not thread-safe."""

    def __init__(self) -> None:
        self._added_at: OrderedDict[str, float] = OrderedDict()

    def add(self, request_id: str, now: float) -> None:
        self._added_at.pop(request_id, None)
        self._added_at[request_id] = now
        while len(self._added_at) > _MAX_REMEMBERED:
            self._added_at.popitem(last=False)

    def has(self, request_id: str, now: float) -> bool:
        added_at = self._added_at.get(request_id)
        return added_at is not None and now - added_at <= _EARLY_STOP_S

    def discard(self, request_id: str) -> None:
        self._added_at.pop(request_id, None)
