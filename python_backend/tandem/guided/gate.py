"""Checked guides, remembered: callers send the same schema with every request."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

from tandem.guided.background import background_pool
from tandem.guided.capabilities import CAPABILITIES, GuidedCapabilities
from tandem.guided.check import resolve_guide
from tandem.guided.limits import GuideLimits
from tandem.types import Guide

_NUM_WORKERS = 2  # a flood of new guides waits for each other, not the answers for them
_MAX_BYTES = 16 * 1024 * 1024


class GuideGate:
    """:func:`resolve_guide` in the background, with a memory of what passed: bounded in bytes, least recently used out first.

    Thread-safe. Its threads start with the first new guide and end with the process.
    """

    def __init__(self, capabilities: GuidedCapabilities = CAPABILITIES["cpu"], limits: GuideLimits | None = None) -> None:
        self.capabilities = capabilities
        self._limits = limits or GuideLimits()
        self._pool = background_pool("tandem-guide", _NUM_WORKERS)
        self._lock = threading.Lock()  # guards the two below
        self._passed: OrderedDict[bytes, Guide] = OrderedDict()
        self._num_bytes = 0

    def resolve(self, guide_type: str | None, guide: str | None) -> Guide | None:
        """Raises: InvalidRequest, Unsupported."""
        if guide_type is None and guide is None:
            return None
        key = hashlib.sha256(f"{guide_type}\0{guide}".encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            found = self._passed.get(key)
            if found is not None:
                self._passed.move_to_end(key)
                return found
        work = self._pool.submit(resolve_guide, guide_type, guide, self.capabilities, self._limits)
        resolved = work.result()
        if resolved is not None:
            self._keep(key, resolved)
        return resolved

    def _keep(self, key: bytes, guide: Guide) -> None:
        with self._lock:
            if key in self._passed:
                return
            self._passed[key] = guide
            self._num_bytes += len(guide.text)
            while self._num_bytes > _MAX_BYTES:
                self._num_bytes -= len(self._passed.popitem(last=False)[1].text)
