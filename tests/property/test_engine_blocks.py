"""Random lives of block tables: grow, fork, write, give back. The pool is held against all tables after every step."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tandem.engine.kv_cache import BlockTable, KvCache

NUM_BLOCKS = 12


class Holder:
    """A table and what its slots hold: per position the name of the write that put it there."""

    def __init__(self):
        self.table = BlockTable(NUM_BLOCKS)
        self.written = []


class BlockTables(RuleBasedStateMachine):
    holders = Bundle("holders")

    def __init__(self):
        super().__init__()
        self.kv = KvCache(NUM_BLOCKS, block_size=3)
        self.living = []
        self.memory = {}  # (block, slot) -> name of the last write
        self.num_writes = 0

    @rule(target=holders)
    def start(self):
        self.living.append(Holder())
        return self.living[-1]

    @rule(holder=holders, count=st.integers(1, 7))
    def write(self, holder, count):
        if holder not in self.living or len(holder.written) + count > NUM_BLOCKS * 3:
            return
        first = len(holder.written)
        tables_before = [living.table.to_list() for living in self.living]
        free_before = self.kv.pool.num_free
        has_room = self.kv.reserve(holder.table, first, first + count)
        copies = self.kv.take_copies()
        if not has_room:
            assert copies == []
            assert self.kv.pool.num_free == free_before
            assert [living.table.to_list() for living in self.living] == tables_before
            return
        for source, target in copies:
            for slot in range(3):
                self.memory[target, slot] = self.memory.get((source, slot))
        for position in range(first, first + count):
            block = int(holder.table.ids[position // 3])
            assert self.kv.pool.ref_count(block) == 1, "a write into a block that another table shares"
            self.num_writes += 1
            self.memory[block, position % 3] = self.num_writes
            holder.written.append(self.num_writes)

    @rule(target=holders, parent=holders)
    def fork(self, parent):
        child = Holder()
        if parent in self.living:
            self.kv.fork(parent.table, child.table)
            child.written = list(parent.written)
        self.living.append(child)
        return child

    @rule(holder=consumes(holders))
    def give_back(self, holder):
        if holder in self.living:
            self.kv.release(holder.table)
            self.living.remove(holder)

    @rule()
    def give_back_all(self):
        for holder in self.living:
            self.kv.release(holder.table)
        self.living = []
        assert self.kv.pool.num_free == NUM_BLOCKS

    @invariant()
    def pool_agrees_with_tables(self):
        self.kv.pool.check(holder.table.to_list() for holder in self.living)
        assert self.kv.pool.num_free + self.kv.pool.num_used == NUM_BLOCKS

    @invariant()
    def tables_have_exactly_the_blocks_they_need(self):
        for holder in self.living:
            assert holder.table.num_blocks == -(-len(holder.written) // 3)

    @invariant()
    def every_table_reads_what_it_wrote(self):
        for holder in self.living:
            read = [self.memory[int(holder.table.ids[at // 3]), at % 3] for at in range(len(holder.written))]
            assert read == holder.written


BlockTables.TestCase.settings = settings(max_examples=120, stateful_step_count=40)
test_block_tables_when_used_at_random_then_consistent = BlockTables.TestCase
