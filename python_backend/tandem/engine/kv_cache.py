"""Block tables: which KV blocks hold the tokens of a sequence, how a table grows, forks, begins with cached blocks, is given back.

::

    block_size 4, a sequence of 10 computed tokens that is about to write token 10 (its 11th)

    table            [ 7 ][ 2 ][ 9 ]
    tokens            0-3  4-7  8 9 _ _      token 10 goes to slot 2 of block 9; 7 and 2 are full: published
    fork             [ 7 ][ 2 ][ 9 ]         same blocks, every ref_count + 1
    first write      [ 7 ][ 2 ][ 4 ]         9 is shared, so it is copied to 4 first (copy-on-write)
    same prompt      [ 7 ][ 2 ]              found by digest: 8 tokens are cached, the next one computed is token 8
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from tandem.engine.block_hash import extend_chain, root_digest
from tandem.engine.block_pool import BlockPool
from tandem.models.decoder import IntArray, LongArray
from tandem.types import CacheHints

_NO_HINTS = CacheHints()


class BlockTable:
    """The blocks of one sequence in token order. Changed only by :class:`KvCache`.

    ``digests`` name the blocks by content; they follow from the tokens alone, so a preempted sequence keeps them.
    """

    __slots__ = ("digests", "hints", "ids", "num_blocks", "num_prompt_tokens", "num_published", "root")

    def __init__(self, max_blocks: int, hints: CacheHints = _NO_HINTS, num_prompt_tokens: int = 0) -> None:
        self.ids: IntArray = np.zeros(max_blocks, np.int32)  # [max_blocks], the first num_blocks are in use
        self.num_blocks = 0
        self.num_published = 0  # blocks from the start whose content can be found, in this block or in an equal one
        self.hints = hints
        self.num_prompt_tokens = num_prompt_tokens
        self.root = root_digest(hints.salt)
        self.digests: list[bytes] = []

    def to_list(self) -> list[int]:
        blocks: list[int] = self.ids[: self.num_blocks].tolist()
        return blocks


class KvCache:
    """Owns the block pool and every change of a block table.

    Copies are collected while a step is being planned; the model runner takes them and runs them before the forward pass.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, has_prefix_cache: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.pool = BlockPool(num_blocks, clock)
        self.block_size = block_size
        self._has_prefix_cache = has_prefix_cache
        self._copies: list[tuple[int, int]] = []

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def find_cached(self, table: BlockTable, token_ids: LongArray, num_tokens: int) -> list[int]:
        """The blocks that hold the longest cached prefix of ``token_ids[:num_tokens]``; at least one token is left to compute,
        because logits come from computing a token. Changes no block: what is found here can be gone at the next allocation.
        """
        if not self._has_prefix_cache:
            return []
        num_blocks = (num_tokens - 1) // self.block_size
        extend_chain(table.digests, table.root, token_ids, self.block_size, num_blocks)
        blocks: list[int] = []
        for digest in table.digests[:num_blocks]:
            block = self.pool.find(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def has_room_for(self, num_tokens: int, cached: list[int], num_spare: int) -> bool:
        """Whether a table that begins with the ``cached`` blocks can grow to ``num_tokens`` and leave ``num_spare`` blocks free."""
        num_new = self.num_blocks_for(num_tokens) - len(cached)
        num_idle = sum(1 for block in cached if self.pool.ref_count(block) == 0)
        return num_new + num_spare <= self.pool.num_free - num_idle

    def adopt(self, table: BlockTable, cached: list[int]) -> None:
        """Let an empty table begin with cached blocks, as found just now."""
        assert table.num_blocks == 0
        self.pool.share(cached)
        table.ids[: len(cached)] = cached
        table.num_blocks = table.num_published = len(cached)
        for number, block in enumerate(cached):
            self._retain(table, number, block)

    def publish(self, table: BlockTable, token_ids: LongArray, num_computed_tokens: int) -> None:
        """Let the blocks be found that the first ``num_computed_tokens`` tokens fill. Call it after the forward pass only."""
        num_full = num_computed_tokens // self.block_size
        if num_full <= table.num_published or not self._has_prefix_cache:
            return
        extend_chain(table.digests, table.root, token_ids, self.block_size, num_full)
        for number in range(table.num_published, num_full):
            block = int(table.ids[number])
            if self.pool.publish(block, table.digests[number]):
                self._retain(table, number, block)
        table.num_published = num_full

    def reserve(self, table: BlockTable, first_write: int, num_tokens: int) -> bool:
        """Make room for ``num_tokens`` tokens in all, those from position ``first_write`` on about to be written.

        Copies the block of the first write when another table shares it; a later block is never shared, because tables only
        share what was computed before they forked. Returns False, with nothing changed, when the pool is short.
        """
        num_new = max(0, self.num_blocks_for(num_tokens) - table.num_blocks)
        write_at = first_write // self.block_size
        needs_copy = write_at < table.num_blocks and self.pool.ref_count(int(table.ids[write_at])) > 1
        if num_new == 0 and not needs_copy:
            return True
        blocks = self.pool.allocate(num_new + needs_copy, table.hints.tenant)
        if blocks is None:
            return False
        if needs_copy:
            source, target = int(table.ids[write_at]), blocks.pop()
            self._copies.append((source, target))
            table.ids[write_at] = target
            self.pool.release([source])
        table.ids[table.num_blocks : table.num_blocks + num_new] = blocks
        table.num_blocks += num_new
        return True

    def fork(self, parent: BlockTable, child: BlockTable) -> None:
        """Let an empty table share all blocks of ``parent``."""
        assert child.num_blocks == 0
        self.pool.share(parent.to_list())
        child.ids[: parent.num_blocks] = parent.ids[: parent.num_blocks]
        child.num_blocks = parent.num_blocks
        child.num_published = parent.num_published
        child.digests = list(parent.digests)

    def release(self, table: BlockTable) -> None:
        """Give back the blocks of a table, which is empty afterwards. Those that are published stay findable until evicted."""
        self.pool.release(table.to_list())
        table.num_blocks = table.num_published = 0

    def reset(self) -> None:
        """Forget everything. Only right when no block table exists any more."""
        self.pool.reset()
        self._copies = []

    def take_copies(self) -> list[tuple[int, int]]:
        """The (source, target) pairs to run before the next forward pass, in this order; forgotten here."""
        copies, self._copies = self._copies, []
        return copies

    def _retain(self, table: BlockTable, number: int, block: int) -> None:
        """Apply what the request says of the block's first token; a request that says nothing leaves an earlier word standing."""
        retention = table.hints.retention_at(number * self.block_size, table.num_prompt_tokens)
        if retention is not None:
            self.pool.retain(block, retention)
