"""Who may use which KV block, and which blocks of ended sequences can be found again by their content.

::

    empty       oldest freed  [ 5 · 0 ]  freed last      no content worth keeping; handed out first, from the left
    idle        cached blocks [ 2 · 7 ] of no sequence   found by digest, else given up (tandem.engine.eviction)
    in use      1:1  3:2  4:1  6:1                       block: references of block tables; 3 is shared

    allocate    empty, then idle -> in use               release    in use -> idle when published, else empty
    share       in use or idle -> in use, one reference more

A *published* block is full and computed; its digest (:mod:`tandem.engine.block_hash`) stands for all tokens up to its end.
Empty and idle blocks together are free: both can be had at once.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tandem.engine.eviction import EvictionQueue
from tandem.types import DEFAULT_RETENTION_PRIORITY, Retention


@dataclass(slots=True)
class _Published:
    """What is known of a published block."""

    digest: bytes
    priority: int = DEFAULT_RETENTION_PRIORITY
    expires_at: float | None = None  # of the priority


class BlockPool:
    """Owns the numbers of the KV blocks, not their memory. Not thread-safe: the engine thread is the only user."""

    def __init__(self, num_blocks: int, clock: Callable[[], float] = time.monotonic) -> None:
        assert num_blocks > 0, num_blocks
        self._clock = clock
        self._ref_counts = [0] * num_blocks
        self._tenants = [""] * num_blocks  # whose a block is while it is in use or idle
        self.num_evictions = 0
        self.reset()

    def reset(self) -> None:
        """Make every block empty. Only right when no block table exists any more."""
        self._ref_counts = [0] * len(self._ref_counts)
        self._empty = OrderedDict.fromkeys(range(len(self._ref_counts)))
        self._idle = EvictionQueue()
        self._published: dict[int, _Published] = {}
        self._by_digest: dict[bytes, int] = {}
        self._num_held: Counter[str] = Counter()  # tenant -> blocks in use and idle

    @property
    def num_blocks(self) -> int:
        return len(self._ref_counts)

    @property
    def num_free(self) -> int:
        return len(self._empty) + len(self._idle)

    @property
    def num_used(self) -> int:
        return len(self._ref_counts) - self.num_free

    @property
    def num_cached(self) -> int:
        """Published blocks, in use or idle."""
        return len(self._published)

    def ref_count(self, block: int) -> int:
        return self._ref_counts[block]

    def allocate(self, count: int, tenant: str = "") -> list[int] | None:
        """Hand out ``count`` blocks with one reference each, or None when the pool is short; then nothing is changed.

        Blocks handed out may have been idle until now; nobody finds their old content any more.
        """
        if count > self.num_free:
            return None
        blocks = [self._empty.popitem(last=False)[0] if self._empty else self._evict() for _ in range(count)]
        for block in blocks:
            self._ref_counts[block] = 1
            self._tenants[block] = tenant
        self._num_held[tenant] += count
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add one reference to each block, for a sequence that forks off another or begins with cached blocks."""
        for block in blocks:
            if self._ref_counts[block] == 0:
                assert block in self._idle, f"block {block} is free and cannot be shared"
                self._idle.remove(block, self._clock())
            self._ref_counts[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each block of a table; a block without references is free again.

        The last block of the table is freed first, so that the start of a prompt stays reusable for longest.
        """
        for block in reversed(blocks):
            count = self._ref_counts[block] - 1
            assert count >= 0, f"block {block} is freed twice"
            self._ref_counts[block] = count
            if count > 0:
                continue
            published = self._published.get(block)
            if published is None:
                self._empty[block] = None
                self._give_up_hold(block)
            else:
                tenant = self._tenants[block]
                self._idle.add(block, tenant, published.priority, published.expires_at, self._clock())

    def publish(self, block: int, digest: bytes) -> bool:
        """Let a full and computed block in use be found; False when another block already stands for this content."""
        assert self._ref_counts[block] > 0, f"block {block} is free and cannot be published"
        assert block not in self._published, f"block {block} is published twice"
        if digest in self._by_digest:
            return False
        self._published[block] = _Published(digest)
        self._by_digest[digest] = block
        return True

    def retain(self, block: int, retention: Retention) -> None:
        """State how long a published block in use is to be kept once it is idle; the latest statement holds."""
        assert self._ref_counts[block] > 0, f"block {block} is free"
        published = self._published[block]
        published.priority = retention.priority
        published.expires_at = None if retention.duration_s is None else self._clock() + retention.duration_s

    def find(self, digest: bytes) -> int | None:
        return self._by_digest.get(digest)

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Hold the pool against the block tables of all living sequences. Raises: AssertionError naming the block."""
        holders: Counter[int] = Counter()
        for table in tables:
            assert len(set(table)) == len(table), f"a block stands twice in one table: {table}"
            holders.update(table)
        num_held: Counter[str] = Counter()
        for block, count in enumerate(self._ref_counts):
            assert count == holders[block], f"block {block} has {count} references but {holders[block]} tables hold it"
            is_empty, is_idle = block in self._empty, block in self._idle
            assert (count > 0) + is_empty + is_idle == 1, f"block {block}: {count} references, empty: {is_empty}, idle: {is_idle}"
            assert is_idle <= (block in self._published), f"block {block} is idle but cannot be found"
            assert not (is_empty and block in self._published), f"block {block} is empty but can be found"
            num_held[self._tenants[block]] += not is_empty
        assert +num_held == +self._num_held, f"blocks held per tenant: {num_held}, counted {self._num_held}"
        assert self._by_digest == {published.digest: block for block, published in self._published.items()}

    def _evict(self) -> int:
        block = self._idle.pop(self._num_held, self._clock())
        del self._by_digest[self._published.pop(block).digest]
        self._give_up_hold(block)
        self.num_evictions += 1
        return block

    def _give_up_hold(self, block: int) -> None:
        tenant = self._tenants[block]
        self._num_held[tenant] -= 1
        if self._num_held[tenant] == 0:
            del self._num_held[tenant]
