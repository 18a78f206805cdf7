"""Random lives of block tables over the prefix cache. After every step each findable block holds the tokens it stands for."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tandem.engine.block_hash import extend_chain, root_digest
from tandem.engine.kv_cache import BlockTable, KvCache
from tandem.types import CacheHints, Retention, RetentionRange

NUM_BLOCKS, BLOCK_SIZE, MAX_TOKENS = 10, 3, 24
SALTS = ("", "a", "a/x", "b")


class Holder:
    """A sequence: all its tokens are given, ``num_computed`` of them are in the blocks of the table."""

    def __init__(self, token_ids, salt, priority):
        self.token_ids = np.array(token_ids, np.int64)
        ranges = () if priority is None else (RetentionRange(0, None, Retention(priority, duration_s=5.0)),)
        self.table = BlockTable(NUM_BLOCKS, CacheHints(salt, ranges), len(token_ids))
        self.salt = salt
        self.num_computed = 0


class PrefixCache(RuleBasedStateMachine):
    holders = Bundle("holders")

    def __init__(self):
        super().__init__()
        self.now_s = 0.0
        self.kv = KvCache(NUM_BLOCKS, BLOCK_SIZE, clock=lambda: self.now_s)
        self.living = []
        self.memory = {}  # (block, slot) -> (salt, all tokens up to this one): what its KV was computed from

    # Two token values and few lengths: prefixes are shared all the time.
    @rule(
        target=holders,
        token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=MAX_TOKENS),
        salt=st.sampled_from(SALTS),
        priority=st.sampled_from((None, 0, 35, 100)),
    )
    def start(self, token_ids, salt, priority):
        holder = Holder(token_ids, salt, priority)
        self._admit(holder)
        return holder

    @rule(holder=holders, count=st.integers(1, 10))
    def compute(self, holder, count):
        end = min(holder.num_computed + count, len(holder.token_ids))
        if holder not in self.living or end == holder.num_computed:
            return
        if not self.kv.reserve(holder.table, holder.num_computed, end):
            return
        self._copy()
        for position in range(holder.num_computed, end):
            block = int(holder.table.ids[position // BLOCK_SIZE])
            assert self.kv.pool.ref_count(block) == 1, "a write into a block that another table shares"
            self.memory[block, position % BLOCK_SIZE] = (holder.salt, tuple(holder.token_ids[: position + 1].tolist()))
        holder.num_computed = end
        self.kv.publish(holder.table, holder.token_ids, end)

    @rule(target=holders, parent=holders)
    def fork(self, parent):
        child = Holder(parent.token_ids.tolist(), parent.salt, None)
        if parent in self.living:
            self.kv.fork(parent.table, child.table)
            child.num_computed = parent.num_computed
        self.living.append(child)
        return child

    @rule(holder=holders)
    def preempt_and_admit_again(self, holder):
        if holder in self.living:
            self.kv.release(holder.table)
            self.living.remove(holder)
            self._admit(holder)

    @rule(holder=consumes(holders))
    def end(self, holder):
        if holder in self.living:
            self.kv.release(holder.table)
            self.living.remove(holder)

    @rule(seconds=st.sampled_from((1.0, 10.0, 1000.0)))
    def wait(self, seconds):
        self.now_s += seconds

    @rule()
    def end_all(self):
        for holder in self.living:
            self.kv.release(holder.table)
        self.living = []
        assert self.kv.pool.num_free == NUM_BLOCKS
        blocks = self.kv.pool.allocate(NUM_BLOCKS)  # whatever is cached can be had
        assert sorted(blocks) == list(range(NUM_BLOCKS))
        assert self.kv.pool.num_cached == 0
        self.kv.pool.release(blocks)

    @invariant()
    def pool_agrees_with_tables(self):
        self.kv.pool.check(holder.table.to_list() for holder in self.living)
        assert self.kv.pool.num_free + self.kv.pool.num_used == NUM_BLOCKS

    @invariant()
    def every_table_reads_its_own_tokens(self):
        for holder in self.living:
            assert holder.table.num_blocks == -(-holder.num_computed // BLOCK_SIZE)
            for position in range(holder.num_computed):
                block = int(holder.table.ids[position // BLOCK_SIZE])
                expected = (holder.salt, tuple(holder.token_ids[: position + 1].tolist()))
                assert self.memory[block, position % BLOCK_SIZE] == expected

    @invariant()
    def every_findable_block_holds_the_tokens_it_stands_for(self):
        for block in range(NUM_BLOCKS):
            published = self.kv.pool._published.get(block)
            if published is None:
                continue
            salt, token_ids = self.memory[block, BLOCK_SIZE - 1]
            assert len(token_ids) % BLOCK_SIZE == 0
            chain = []
            extend_chain(chain, root_digest(salt), np.array(token_ids, np.int64), BLOCK_SIZE, len(token_ids) // BLOCK_SIZE)
            assert published.digest == chain[-1]

    def _admit(self, holder):
        cached = self.kv.find_cached(holder.table, holder.token_ids, len(holder.token_ids))
        assert len(cached) * BLOCK_SIZE < len(holder.token_ids), "no token is left to compute"
        self.kv.adopt(holder.table, cached)
        holder.num_computed = len(cached) * BLOCK_SIZE
        self.living.append(holder)

    def _copy(self):
        for source, target in self.kv.take_copies():
            for slot in range(BLOCK_SIZE):
                self.memory[target, slot] = self.memory.get((source, slot))


PrefixCache.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
test_prefix_cache_when_used_at_random_then_blocks_hold_what_they_stand_for = PrefixCache.TestCase
