"""Stories of the block pool and of block tables, with exact block ids and free order."""

import pytest

from tandem.engine.block_pool import BlockPool
from tandem.engine.kv_cache import BlockTable, KvCache


def test_pool_when_blocks_come_back_then_oldest_freed_goes_out_first():
    pool = BlockPool(5)
    first, second = pool.allocate(2), pool.allocate(2)
    assert (first, second) == ([0, 1], [2, 3])
    pool.release(first)  # the last block of a table is freed first
    pool.release(second)
    assert pool.allocate(5) == [4, 1, 0, 3, 2]


def test_pool_when_short_then_none_and_unchanged():
    pool = BlockPool(3)
    assert pool.allocate(2) == [0, 1]
    assert pool.allocate(2) is None
    assert (pool.num_free, pool.num_used) == (1, 2)
    assert pool.allocate(0) == []


def test_pool_when_block_is_shared_then_free_only_after_last_release():
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.share(blocks)
    assert pool.ref_count(0) == 2
    pool.release(blocks)
    assert (pool.ref_count(0), pool.num_free) == (1, 1)
    pool.release(blocks)
    assert pool.num_free == 2


def test_pool_when_misused_then_assertion_names_the_block():
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match="block 1 is free"):
        pool.share([1])
    with pytest.raises(AssertionError, match="block 0 is freed twice"):
        pool.release([0])


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([[0, 1], [1]], "block 1 has 1 references but 2 tables"),
        ([[0]], "block 1 has 1 references but 0 tables"),
        ([[0, 0], [1]], "stands twice"),
    ],
)
def test_pool_check_when_tables_disagree_then_raises(tables, message):
    pool = BlockPool(3)
    pool.allocate(2)
    pool.check([[0], [1]])
    with pytest.raises(AssertionError, match=message):
        pool.check(tables)


def test_table_when_it_grows_then_takes_a_block_per_block_size():
    kv, table = KvCache(8, block_size=4), BlockTable(8)
    assert kv.reserve(table, 0, 5)
    assert table.to_list() == [0, 1]
    assert kv.reserve(table, 5, 8)
    assert table.to_list() == [0, 1]
    assert kv.reserve(table, 8, 9)
    assert table.to_list() == [0, 1, 2]
    assert kv.take_copies() == []


def test_fork_when_last_block_is_partial_then_copied_on_first_write():
    """The picture in kv_cache.py: 10 tokens in blocks of 4."""
    kv, parent, child = KvCache(8, block_size=4), BlockTable(8), BlockTable(8)
    kv.reserve(parent, 0, 10)
    kv.fork(parent, child)
    assert child.to_list() == parent.to_list() == [0, 1, 2]
    assert kv.reserve(parent, 10, 11)
    assert kv.take_copies() == [(2, 3)]
    assert (parent.to_list(), child.to_list()) == ([0, 1, 3], [0, 1, 2])
    assert kv.reserve(child, 10, 11)  # no longer shared: written in place
    assert kv.take_copies() == []
    kv.release(parent)
    kv.release(child)
    assert kv.pool.num_free == 8


def test_fork_when_last_block_is_full_then_nothing_is_copied():
    kv, parent, child = KvCache(8, block_size=4), BlockTable(8), BlockTable(8)
    kv.reserve(parent, 0, 8)
    kv.fork(parent, child)
    assert kv.reserve(parent, 8, 9)
    assert kv.reserve(child, 8, 9)
    assert kv.take_copies() == []
    assert (parent.to_list(), child.to_list()) == ([0, 1, 2], [0, 1, 3])


def test_reserve_when_copy_and_growth_do_not_both_fit_then_nothing_changes():
    kv, parent, child = KvCache(3, block_size=4), BlockTable(8), BlockTable(8)
    kv.reserve(parent, 0, 6)
    kv.fork(parent, child)
    assert not kv.reserve(child, 6, 9)  # one copy and one new block, one is free
    assert child.to_list() == [0, 1]
    assert kv.take_copies() == []
    assert kv.reserve(child, 6, 8)
    assert kv.take_copies() == [(1, 2)]
