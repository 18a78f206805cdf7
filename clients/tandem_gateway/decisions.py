"""The records of the last decisions, for ``tandem explain``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

_MAX_REQUESTS = 2048


class DecisionStore:
    """One event loop. Bounded: the oldest request goes first. A tenant finds its own requests only."""

    def __init__(self, max_requests: int = _MAX_REQUESTS) -> None:
        self._max_requests = max_requests
        self._requests: OrderedDict[tuple[str, str], tuple[str, ...]] = OrderedDict()  # (tenant, completion id) -> records
        self._names: OrderedDict[tuple[str, str], str] = OrderedDict()  # (tenant, request id) -> completion id

    def keep(self, tenant: str, completion_id: str, request_id: str, records: Sequence[str]) -> None:
        """``records``: one per prompt of the request. Of a request id that is used again the newest request is found."""
        if not records:
            return
        self._requests[tenant, completion_id] = tuple(records)
        self._names[tenant, request_id] = completion_id
        self._names.move_to_end((tenant, request_id))
        while len(self._requests) > self._max_requests:
            self._requests.popitem(last=False)
        while len(self._names) > self._max_requests:
            self._names.popitem(last=False)

    def find(self, tenant: str, name: str) -> tuple[str, ...] | None:
        """By completion id or request id; None when it is unknown (any more)."""
        found = self._requests.get((tenant, name))
        return found if found is not None else self._requests.get((tenant, self._names.get((tenant, name), "")))
