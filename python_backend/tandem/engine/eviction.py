"""Which cached block is given up next: fair between tenants, by retention priority and least recent use within one.

::

    tenant  blocks held  idle blocks by priority, oldest first
    A            7       35: [4 · 9]   80: [2]
    B           12       35: [1 · 6 · 8]            B holds more, so block 1 goes

A block is idle when no sequence refers to it. The tenant that holds the most blocks, in use or idle, gives up one of its idle
blocks: a flood of one tenant evicts its own, and nobody is pushed below an equal share. A tenant that has used nothing for
``STALE_AFTER_S`` has no share to protect: its blocks go first. Priorities are TensorRT-LLM's retention priorities; they order the
blocks of one tenant only, so that nobody can keep others out by asking for 100.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Mapping

from tandem.types import DEFAULT_RETENTION_PRIORITY

STALE_AFTER_S = 300.0


class _Shelves:
    """The idle blocks of one tenant: priority -> blocks, least recently used first. No level is empty."""

    __slots__ = ("levels", "used_at")

    def __init__(self) -> None:
        self.levels: dict[int, OrderedDict[int, None]] = {}
        self.used_at = 0.0


class EvictionQueue:
    """Owns the order of the idle blocks. Times are seconds of the caller's clock."""

    def __init__(self) -> None:
        self._shelves: dict[str, _Shelves] = {}  # a tenant without idle blocks is not in it
        self._places: dict[int, tuple[str, int]] = {}  # block -> (tenant, priority)
        self._expiries: list[tuple[float, int]] = []  # heap of (time, block); entries of blocks that left are passed over
        self._expires_at: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, block: int) -> bool:
        return block in self._places

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def add(self, block: int, tenant: str, priority: int, expires_at: float | None, now: float) -> None:
        """Put in a block that became idle now; at ``expires_at`` its priority falls back to the default."""
        assert block not in self._places, f"block {block} is idle twice"
        if expires_at is not None and expires_at <= now:
            priority, expires_at = DEFAULT_RETENTION_PRIORITY, None
        self._put(block, tenant, priority)
        self._shelves[tenant].used_at = now
        if expires_at is not None:
            self._expires_at[block] = expires_at
            heapq.heappush(self._expiries, (expires_at, block))

    def remove(self, block: int, now: float) -> None:
        """Take out a block that is in use again."""
        tenant, _ = self._places[block]
        self._shelves[tenant].used_at = now
        self._take(block)

    def pop(self, num_held: Mapping[str, int], now: float) -> int:
        """Take out the block to give up; ``num_held`` counts the blocks of each tenant, in use and idle."""
        self._end_retentions(now)
        tenant = self._tenant_to_give(num_held, now)
        levels = self._shelves[tenant].levels
        block = next(iter(levels[min(levels)]))
        self._take(block)
        return block

    def _tenant_to_give(self, num_held: Mapping[str, int], now: float) -> str:
        stalest = min(self._shelves, key=lambda tenant: self._shelves[tenant].used_at)
        if now - self._shelves[stalest].used_at > STALE_AFTER_S:
            return stalest
        return max(self._shelves, key=lambda tenant: (num_held[tenant], -self._shelves[tenant].used_at))

    def _end_retentions(self, now: float) -> None:
        while self._expiries and self._expiries[0][0] <= now:
            expires_at, block = heapq.heappop(self._expiries)
            if self._expires_at.get(block) == expires_at:
                tenant, _ = self._places[block]
                used_at = self._shelves[tenant].used_at
                self._take(block)
                self._put(block, tenant, DEFAULT_RETENTION_PRIORITY)
                self._shelves[tenant].used_at = used_at

    def _put(self, block: int, tenant: str, priority: int) -> None:
        shelves = self._shelves.setdefault(tenant, _Shelves())
        shelves.levels.setdefault(priority, OrderedDict())[block] = None
        self._places[block] = (tenant, priority)

    def _take(self, block: int) -> None:
        tenant, priority = self._places.pop(block)
        self._expires_at.pop(block, None)
        levels = self._shelves[tenant].levels
        del levels[priority][block]
        if not levels[priority]:
            del levels[priority]
        if not levels:
            del self._shelves[tenant]
