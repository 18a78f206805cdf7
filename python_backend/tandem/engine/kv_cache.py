"""Block tables: which KV blocks hold the tokens of a sequence, and how a table grows, forks and is given back.

::

    block_size 4, a sequence of 10 computed tokens that is about to write token 10 (its 11th)

    table            [ 7 ][ 2 ][ 9 ]
    tokens            0-3  4-7  8 9 _ _      token 10 goes to slot 2 of block 9
    fork             [ 7 ][ 2 ][ 9 ]         same blocks, every ref_count + 1
    first write      [ 7 ][ 2 ][ 4 ]         9 is shared, so it is copied to 4 first (copy-on-write)
"""

from __future__ import annotations

import numpy as np

from tandem.engine.block_pool import BlockPool
from tandem.models.decoder import IntArray


class BlockTable:
    """The blocks of one sequence in token order. Changed only by :class:`KvCache`."""

    __slots__ = ("ids", "num_blocks")

    def __init__(self, max_blocks: int) -> None:
        self.ids: IntArray = np.zeros(max_blocks, np.int32)  # [max_blocks], the first num_blocks are in use
        self.num_blocks = 0

    def to_list(self) -> list[int]:
        blocks: list[int] = self.ids[: self.num_blocks].tolist()
        return blocks


class KvCache:
    """Owns the block pool and every change of a block table.

    Copies are collected while a step is being planned; the model runner takes them and runs them before the forward pass.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self._copies: list[tuple[int, int]] = []

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

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
        blocks = self.pool.allocate(num_new + needs_copy)
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

    def release(self, table: BlockTable) -> None:
        """Give back the blocks of a table, which is empty afterwards."""
        self.pool.release(table.to_list())
        table.num_blocks = 0

    def reset(self) -> None:
        """Forget everything. Only right when no block table exists any more."""
        self.pool.reset()
        self._copies = []

    def take_copies(self) -> list[tuple[int, int]]:
        """The (source, target) pairs to run before the next forward pass, in this order; forgotten here."""
        copies, self._copies = self._copies, []
        return copies
