"""Stories of cached blocks: which are found, which are given up, in what order, and whose."""

import numpy as np
import pytest

from tandem.engine.block_hash import extend_chain, root_digest
from tandem.engine.block_pool import BlockPool
from tandem.engine.eviction import STALE_AFTER_S
from tandem.engine.kv_cache import BlockTable, KvCache
from tandem.errors import InvalidRequest
from tandem.types import CacheHints, Retention, RetentionRange

B = 4
NO_HINTS = CacheHints()


class Clock:
    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


def tokens_of(*ids):
    return np.array(ids, np.int64)


def make_kv(num_blocks, clock=None, **options):
    return KvCache(num_blocks, B, clock=clock or Clock(), **options)


def run(kv, token_ids, hints=NO_HINTS, num_prompt_tokens=None):
    """Compute all tokens and end at once, as a request would. Returns (cached blocks, whole table)."""
    token_ids = tokens_of(*token_ids)
    table = BlockTable(64, hints, len(token_ids) if num_prompt_tokens is None else num_prompt_tokens)
    cached = kv.find_cached(table, token_ids, len(token_ids))
    kv.adopt(table, cached)
    assert kv.reserve(table, len(cached) * B, len(token_ids))
    kv.publish(table, token_ids, len(token_ids))
    blocks = table.to_list()
    kv.release(table)
    kv.pool.check([])
    return cached, blocks


def prompt(number, num_blocks=1):
    """A prompt of whole blocks and one token more; no two numbers share a block."""
    return [number * 1000 + position for position in range(num_blocks * B + 1)]


def num_hits(kv, token_ids, hints=NO_HINTS):
    table = BlockTable(64, hints)
    return len(kv.find_cached(table, tokens_of(*token_ids), len(token_ids)))


def test_chain_when_anything_before_differs_then_digest_differs():
    def digests(salt, *ids):
        chain = []
        extend_chain(chain, root_digest(salt), tokens_of(*ids), 2, len(ids) // 2)
        return chain

    base = digests("", 1, 2, 3, 4)
    assert [len(digest) for digest in base] == [32, 32]
    assert digests("", 1, 2, 3, 4, 5, 6)[:2] == base
    assert digests("", 1, 9, 3, 4)[1] != base[1]
    assert digests("", 2, 1, 3, 4)[0] != base[0]
    assert not set(digests("a", 1, 2, 3, 4)) & set(base)
    assert not set(digests("a/b", 1, 2, 3, 4)) & set(digests("a", 1, 2, 3, 4))


def test_prefix_when_found_then_shared_block_by_block_and_one_token_is_left():
    kv = make_kv(8)
    assert run(kv, range(8)) == ([], [0, 1])
    assert run(kv, range(8)) == ([0], [0, 2])  # block 1 holds the last token, which must be computed
    assert run(kv, range(9)) == ([0, 1], [0, 1, 3])  # the oldest empty block goes out first
    assert run(kv, [0, 1, 2, 3, 9, 9, 9, 9, 9]) == ([0], [0, 4, 5])
    assert run(kv, [9, 1, 2, 3, 4, 5, 6, 7, 8])[0] == []


def test_prefix_when_cache_is_off_then_nothing_is_kept():
    kv = make_kv(8, has_prefix_cache=False)
    run(kv, range(9))
    assert run(kv, range(9))[0] == []
    assert kv.pool.num_cached == 0


def test_equal_blocks_when_computed_twice_at_once_then_the_first_stands_for_both():
    kv, ids = make_kv(6), tokens_of(*range(5))
    tables = [BlockTable(4), BlockTable(4)]
    for table in tables:
        assert kv.find_cached(table, ids, 5) == []
        kv.reserve(table, 0, 5)
    for table in tables:
        kv.publish(table, ids, 5)
    assert [table.to_list() for table in tables] == [[0, 1], [2, 3]]
    kv.release(tables[1])  # block 2 cannot be found, so it is empty at once
    assert (kv.pool.num_cached, kv.pool.num_free) == (1, 4)
    kv.release(tables[0])
    assert run(kv, range(5))[0] == [0]


def test_blocks_when_only_partly_computed_then_not_published():
    kv, table, ids = make_kv(6), BlockTable(4), tokens_of(*range(9))
    kv.reserve(table, 0, 9)
    kv.publish(table, ids, 7)
    assert (kv.pool.num_cached, num_hits(kv, range(9))) == (1, 1)
    kv.publish(table, ids, 8)
    assert (kv.pool.num_cached, num_hits(kv, range(9))) == (2, 2)


def test_eviction_when_pool_is_full_then_least_recently_used_tail_goes_first():
    kv = make_kv(7)
    run(kv, prompt(1, 2))  # two full blocks; the third is empty again
    run(kv, prompt(2, 2))
    run(kv, prompt(1, 2))
    assert (kv.pool.num_cached, kv.pool.num_evictions) == (4, 0)
    run(kv, prompt(3, 3))  # needs 4 blocks, 3 are empty: the tail of prompt 2 goes
    assert [num_hits(kv, prompt(number, 3)) for number in (1, 2, 3)] == [2, 1, 3]
    assert kv.pool.num_evictions == 1


def test_eviction_when_block_is_in_use_then_never_given_up():
    kv, table, ids = make_kv(3), BlockTable(4), tokens_of(*prompt(1))
    kv.reserve(table, 0, 5)
    kv.publish(table, ids, 5)
    assert kv.pool.allocate(2) is None
    assert kv.pool.allocate(1) == [2]
    assert num_hits(kv, prompt(1)) == 1


def test_room_when_cached_blocks_are_idle_then_they_are_not_counted_twice():
    kv = make_kv(4)
    run(kv, prompt(1, 2))
    cached = kv.find_cached(BlockTable(8), tokens_of(*prompt(1, 2)), 9)
    assert cached == [0, 1]
    assert kv.has_room_for(16, cached, num_spare=0)
    assert not kv.has_room_for(16, cached, num_spare=1)
    assert not kv.has_room_for(17, cached, num_spare=0)
    assert not kv.has_room_for(17, [], num_spare=0)


def test_retention_when_priorities_differ_then_lowest_goes_first():
    kv = make_kv(4)
    high, low = (CacheHints(ranges=(RetentionRange(0, None, Retention(priority)),)) for priority in (80, 10))
    run(kv, prompt(1), high)
    run(kv, prompt(2))
    run(kv, prompt(3), low)
    given_up = []
    for number in range(4, 6):  # two blocks each: the second is empty again, the first stays
        run(kv, prompt(number), CacheHints(ranges=(RetentionRange(0, None, Retention(90)),)))
        given_up.append([known for known in (1, 2, 3) if not num_hits(kv, prompt(known))])
    assert given_up == [[3], [2, 3]]


def test_retention_when_range_covers_part_of_the_prompt_then_only_its_blocks_are_kept():
    hints = CacheHints(ranges=(RetentionRange(0, 4, Retention(90)), RetentionRange(4, 8, Retention(5))), decode=Retention(1))
    assert [hints.retention_at(position, 12) for position in (0, 3, 4, 8)] == [Retention(90), Retention(90), Retention(5), None]
    assert hints.retention_at(12, 12) == Retention(1)
    kv = make_kv(5)
    _, blocks = run(kv, range(17), hints, num_prompt_tokens=12)
    assert blocks[:4] == [0, 1, 2, 3]
    order = []
    for _ in range(5):
        order += kv.pool.allocate(1)
    assert order == [4, 3, 1, 2, 0]  # empty, decode 1, prompt 5, default 35, prompt 90


def test_retention_when_duration_is_over_then_falls_back_to_default():
    clock = Clock()
    kv = make_kv(4, clock)
    run(kv, prompt(1), CacheHints(ranges=(RetentionRange(0, None, Retention(100, duration_s=60.0)),)))
    run(kv, prompt(2), CacheHints(ranges=(RetentionRange(0, None, Retention(50)),)))
    run(kv, prompt(3), CacheHints(ranges=(RetentionRange(0, None, Retention(60)),)))
    clock.now_s += 59.0
    kv.pool.allocate(2)  # one empty block, then the lowest priority
    assert [num_hits(kv, prompt(number)) for number in (1, 2, 3)] == [1, 0, 1]
    clock.now_s += 2.0
    kv.pool.allocate(1)  # 100 is 35 again
    assert [num_hits(kv, prompt(number)) for number in (1, 2, 3)] == [0, 0, 1]


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: Retention(101), "retention priority"),
        (lambda: Retention(-1), "retention priority"),
        (lambda: Retention(35, duration_s=-1.0), "retention duration"),
        (lambda: RetentionRange(-1, None, Retention()), "retention range start"),
        (lambda: RetentionRange(5, 4, Retention()), "retention range end"),
    ],
)
def test_retention_when_out_of_range_then_refused(build, field):
    with pytest.raises(InvalidRequest) as caught:
        build()
    assert caught.value.field == field


def test_priority_when_a_tenant_asks_for_the_highest_then_others_keep_their_share():
    kv = make_kv(13)
    for number in range(4):
        run(kv, prompt(number), CacheHints(salt="a"))
    greedy = CacheHints(salt="b", ranges=(RetentionRange(0, None, Retention(100)),))
    for number in range(100, 140):
        run(kv, prompt(number), greedy)
    assert [num_hits(kv, prompt(number), CacheHints(salt="a")) for number in range(4)] == [1, 1, 1, 1]


@pytest.mark.parametrize("salts", [("b",), ("b/1", "b/2", "b/3", "b/4")])
def test_flood_when_one_tenant_fills_the_pool_then_the_others_hit_rate_holds(salts):
    """The figure: a flood lowers another tenant's hit rate by at most 10 %. Narrowing the salt makes no new tenants."""

    def hit_rate_of_a(num_flood_prompts):
        kv, hits, asked, flood = make_kv(64), 0, 0, 0
        for _ in range(40):
            for number in range(6):  # 6 prompts of 4 blocks: 24 of 64 blocks, less than half
                cached, _ = run(kv, prompt(number, 4), CacheHints(salt="a"))
                hits, asked = hits + len(cached), asked + 4
                for _ in range(num_flood_prompts):
                    flood += 1
                    run(kv, prompt(1000 + flood, 4), CacheHints(salt=salts[flood % len(salts)]))
        return hits / asked

    alone, flooded = hit_rate_of_a(0), hit_rate_of_a(5)
    assert alone > 0.95
    assert flooded >= 0.9 * alone


def test_flood_when_tenant_is_gone_for_long_then_its_blocks_go_first():
    clock = Clock()
    kv = make_kv(8, clock)
    for number in range(3):
        run(kv, prompt(number), CacheHints(salt="gone"))
    clock.now_s += STALE_AFTER_S + 1
    for number in range(100, 107):
        run(kv, prompt(number), CacheHints(salt="here"))
    assert [num_hits(kv, prompt(number), CacheHints(salt="gone")) for number in range(3)] == [0, 0, 0]
    assert sum(num_hits(kv, prompt(number), CacheHints(salt="here")) for number in range(100, 107)) == 7


def test_pool_when_reset_then_nothing_is_found():
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.publish(block, b"digest")
    pool.reset()
    assert pool.find(b"digest") is None
    assert pool.num_free == 2
    pool.check([])
