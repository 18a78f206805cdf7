"""Which sequences get how many tokens in the next step.

There is no prefill phase and no decode phase: every running sequence has computed tokens that catch up with its tokens, under one
budget of tokens per step. A sequence that is one token behind decodes; one that is further behind gets a chunk of what is left::

    max_num_batched_tokens 8, running in order of admission

    A  40 of 41 computed    1 token   decodes have their tokens set aside first, so a long prompt cannot stall them
    B  12 of 13 computed    1 token
    C   5 of 30 computed    6 tokens  a chunk of the prefill; C samples nothing in this step
    D   waits               0 tokens  admitted when budget, slots and blocks allow

A sequence whose guide forces the next tokens is behind by all of them. It decodes too: one token is set aside, and it gets the
others of its run before any prefill.

Which prompt gets the rest of the budget is the policy's to say (:mod:`tandem.engine.waiting`): were D to outrank C, it would be
admitted now and C's prefill would pause.

Blocks: an admitted sequence gets the blocks of all its tokens at once, those of the longest cached prefix by sharing: their tokens
count as computed. When a running one needs a block and none is free, the
sequence admitted last gives up its blocks and waits (preemption by recompute). The first running sequence can always go on,
because no request is accepted that does not fit the pool alone; so every sequence ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.engine.kv_cache import KvCache
from tandem.engine.sequence import Sequence
from tandem.engine.waiting import WaitingQueue


@dataclass(frozen=True, slots=True)
class ScheduledBatch:
    """One step: ``num_tokens[i]`` more tokens of ``sequences[i]``, after the block ``copies``."""

    sequences: list[Sequence]
    num_tokens: list[int]
    copies: list[tuple[int, int]]


class Scheduler:
    """Owns the running list and the waiting queue; the only caller of :class:`KvCache`."""

    def __init__(self, kv: KvCache, waiting: WaitingQueue, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.kv = kv
        self.waiting = waiting
        self.running: list[Sequence] = []  # in order of admission
        self.num_preemptions = 0
        self.num_reused_blocks = 0
        self.num_prompt_tokens = 0  # of admitted requests, each once
        self.num_cached_tokens = 0  # the part of them that was cached
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens

    @property
    def num_seats_taken(self) -> int:
        return sum(sequence.num_seats for sequence in self.running)

    @property
    def has_work(self) -> bool:
        return bool(self.running) or len(self.waiting) > 0

    def add(self, sequence: Sequence) -> None:
        self.waiting.add(sequence)

    def schedule(self) -> ScheduledBatch:
        """Plan one step. Modifies block tables, the running list and the waiting queue; not empty while there is work."""
        batch = ScheduledBatch([], [], [])
        self._schedule_prefills(batch, self._schedule_decodes(batch))
        batch.copies.extend(self.kv.take_copies())
        for sequence, num_tokens in zip(batch.sequences, batch.num_tokens, strict=True):
            self.waiting.note_scheduled(sequence, num_tokens)
        return batch

    def fork(self, parent: Sequence, siblings: list[Sequence]) -> None:
        """Let siblings share the computed tokens of a running sequence. They count as admitted with it."""
        position = self.running.index(parent) + 1
        for sibling in siblings:
            self.kv.fork(parent.table, sibling.table)
            sibling.num_computed_tokens = parent.num_computed_tokens
        self.running[position:position] = siblings

    def remove(self, sequence: Sequence, *, is_complete: bool = False) -> None:
        """Take out an ended sequence, running or waiting, and free its blocks."""
        if not self.waiting.remove(sequence):
            self.running.remove(sequence)
        self.kv.release(sequence.table)
        self.waiting.note_ended(sequence, is_complete=is_complete)

    def _schedule_decodes(self, batch: ScheduledBatch) -> int:
        """One token for each running sequence that decodes, then the rest of forced runs; returns what is left of the budget."""
        running = self.running
        budget = self._max_num_batched_tokens
        position = 0
        while position < len(running):
            sequence = running[position]
            position += 1
            if not _decodes(sequence):
                continue
            if not self._make_room(sequence, sequence.num_tokens):
                break
            budget -= 1
            batch.sequences.append(sequence)
            batch.num_tokens.append(1)
        for i, sequence in enumerate(batch.sequences):
            num_more = min(sequence.num_tokens - sequence.num_computed_tokens - 1, budget)
            batch.num_tokens[i] += num_more
            budget -= num_more
        return budget

    def _schedule_prefills(self, batch: ScheduledBatch, budget: int) -> None:
        """Spend the budget on chunks, by rank: of running sequences, and of waiting ones that are admitted for it.

        A running one has the blocks of all its tokens. One that outranks it takes its place in the budget, not its slot or blocks;
        when there is no room for that one, those that run go on. Only for one that is pressing, prefills behind it are preempted.
        """
        waiting = self.waiting
        prefills = [sequence for sequence in self.running if not _decodes(sequence)]
        prefills.sort(key=waiting.rank, reverse=True)  # the first to get a chunk stands last
        while budget > 0:
            head = waiting.peek()
            outranks = head is not None and (not prefills or waiting.rank(head) < waiting.rank(prefills[-1]))
            if head is not None and outranks and (self._admit(head) or self._admit_over(head, prefills)):
                sequence = head
            elif prefills:
                sequence = prefills.pop()
            else:
                return
            num_tokens = min(sequence.num_tokens - sequence.num_computed_tokens, budget)
            budget -= num_tokens
            batch.sequences.append(sequence)
            batch.num_tokens.append(num_tokens)

    def _admit_over(self, sequence: Sequence, prefills: list[Sequence]) -> bool:
        """Make room for a pressing sequence by preempting ``prefills`` that are not, the last in rank first; takes them out.

        None of them is in the batch yet. False when that was not enough; those that were preempted wait for their turn again.
        """
        if not self.waiting.is_pressing(sequence):
            return False
        while prefills and not self.waiting.is_pressing(prefills[0]):
            victim = prefills.pop(0)
            self.running.remove(victim)
            self._preempt(victim)
            if self._admit(sequence):
                return True
        return False

    def _make_room(self, sequence: Sequence, num_tokens: int) -> bool:
        """Preempt from the end of the running list until there is room; False when that reached ``sequence`` itself.

        Victims stand behind ``sequence``, so none of them is in the batch yet and no pending copy points at their blocks.
        """
        while not self.kv.reserve(sequence.table, sequence.num_computed_tokens, num_tokens):
            victim = self.running.pop()
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Free the blocks of a sequence that was taken off the running list, and let it wait."""
        self.kv.release(sequence.table)
        sequence.num_computed_tokens = 0
        self.num_preemptions += 1
        self.waiting.add(sequence)

    def _admit(self, sequence: Sequence) -> bool:
        """Move a waiting sequence to the running list; False, with nothing changed, when slots or blocks are short."""
        if sequence.num_seats > self._max_num_seqs - self.num_seats_taken:
            return False
        cached = self.kv.find_cached(sequence.table, sequence.token_ids, sequence.num_tokens)
        # One more block for each running sequence is left free, else the next steps would preempt what is admitted here.
        if not self.kv.has_room_for(sequence.num_tokens, cached, num_spare=len(self.running)):
            return False
        self._begin(sequence, cached)
        return True

    def _begin(self, sequence: Sequence, cached: list[int]) -> None:
        """Move a waiting sequence to the running list, its table filled for all its tokens."""
        self.kv.adopt(sequence.table, cached)
        sequence.num_computed_tokens = len(cached) * self.kv.block_size
        has_room = self.kv.reserve(sequence.table, sequence.num_computed_tokens, sequence.num_tokens)
        assert has_room
        self.num_reused_blocks += len(cached)
        if sequence.request.num_cached_tokens is None:
            sequence.request.num_cached_tokens = sequence.num_computed_tokens
            self.num_prompt_tokens += len(sequence.request.prompt_ids)
            self.num_cached_tokens += sequence.num_computed_tokens
        self.waiting.remove(sequence)
        self.running.append(sequence)


def _decodes(sequence: Sequence) -> bool:
    """True when all that is left to compute are the tokens of its last step; a preempted sequence has more."""
    return sequence.num_tokens - sequence.num_computed_tokens <= max(sequence.num_ahead, 1)
