"""Who may use which KV block: a free list and one reference count per block.

::

    free list   oldest freed  [ 5 · 2 · 7 · 0 ]  freed last       allocate takes from the left,
    ref_counts   0:0  1:1  2:0  3:2  4:1  5:0  6:1  7:0           release puts back on the right

The content of a freed block stays until the block is handed out again, and the block freed last is handed out last: a prefix
cache can be laid over this pool by keeping hash -> block and taking a block out of the middle of the free list on a hit.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """Owns the numbers of the KV blocks, not their memory. Not thread-safe: the engine thread is the only user."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0, num_blocks
        self._ref_counts = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def num_blocks(self) -> int:
        return len(self._ref_counts)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return len(self._ref_counts) - len(self._free)

    def ref_count(self, block: int) -> int:
        return self._ref_counts[block]

    def allocate(self, count: int) -> list[int] | None:
        """Hand out ``count`` blocks with one reference each, or None when the pool is short; then nothing is changed."""
        if count > len(self._free):
            return None
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._ref_counts[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Add one reference to each block, for a sequence that forks off another."""
        for block in blocks:
            assert self._ref_counts[block] > 0, f"block {block} is free and cannot be shared"
            self._ref_counts[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each block of a table; a block without references is free again.

        The last block of the table is freed first, so that the start of a prompt stays reusable for longest.
        """
        for block in reversed(blocks):
            count = self._ref_counts[block] - 1
            assert count >= 0, f"block {block} is freed twice"
            self._ref_counts[block] = count
            if count == 0:
                self._free[block] = None

    def reset(self) -> None:
        """Make every block free. Only right when no block table exists any more."""
        self._ref_counts = [0] * len(self._ref_counts)
        self._free = OrderedDict.fromkeys(range(len(self._ref_counts)))

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Hold the pool against the block tables of all living sequences. Raises: AssertionError naming the block."""
        holders: Counter[int] = Counter()
        for table in tables:
            assert len(set(table)) == len(table), f"a block stands twice in one table: {table}"
            holders.update(table)
        for block, count in enumerate(self._ref_counts):
            assert count == holders[block], f"block {block} has {count} references but {holders[block]} tables hold it"
            assert (count == 0) == (block in self._free), f"block {block} with {count} references, free: {block in self._free}"
        assert len(self._free) + self.num_used == len(self._ref_counts)
