"""Random lives of requests in the engine: add, step, cancel, fail. What must hold after every step, and that all of them end."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tandem.errors import EngineFailure, InvalidRequest
from tests.factories import ScriptedDecoder, assert_is_idle, collect, make_engine, make_request

MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, BLOCK_SIZE = 5, 11, 4
END_ID = 3
# Four likely tokens, one of them the end token: sampled sequences end early and late.
ROW = [1.0, 1.0, 1.0, 0.0, -50.0]


class RecordingDecoder(ScriptedDecoder):
    """Keeps the sizes of every batch: (tokens, sequences, sampled rows, longest context, max_context_len)."""

    def __init__(self, row, **options):
        super().__init__(row, **options)
        self.batch_sizes = []

    def forward(self, batch):
        contexts = batch.past_lens + (batch.subsequence_begins[1:] - batch.subsequence_begins[:-1])
        sizes = len(batch.input_ids), len(batch.past_lens), len(batch.sample_idx), int(contexts.max()), batch.max_context_len
        self.batch_sizes.append(sizes)
        return super().forward(batch)


class Requests(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(8, 30))
    def start(self, num_blocks):
        self.decoder = RecordingDecoder(ROW, num_blocks=num_blocks, block_size=BLOCK_SIZE, max_seq_len=64)
        self.engine = make_engine(self.decoder, max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS)
        self.answers = {}
        self.accepted = []
        self.limits = {}
        self.num_failed = 0

    @rule(
        prompt_tokens=st.integers(1, 40),
        max_tokens=st.integers(1, 30),
        num_return_sequences=st.integers(1, MAX_NUM_SEQS),
        seed=st.integers(0, 5),
    )
    def add(self, prompt_tokens, max_tokens, num_return_sequences, seed):
        request = make_request(
            [0] * prompt_tokens,
            max_tokens=max_tokens,
            num_return_sequences=num_return_sequences,
            seed=seed,
            temperature=1.0,
            end_id=END_ID,
        )
        try:
            self.engine.add(self.engine.prepare(request))
        except InvalidRequest:
            stats = self.engine.stats()
            assert prompt_tokens + min(max_tokens, 64 - prompt_tokens) - 1 > stats.num_blocks * BLOCK_SIZE
            return
        self.accepted.append(request.request_id)
        self.limits[request.request_id] = max_tokens

    @rule(count=st.integers(1, 6))
    def step(self, count):
        for _ in range(count):
            collect(self.engine.step(), self.answers)

    @rule(which=st.integers(0, 100))
    def cancel(self, which):
        if self.accepted:
            last = self.engine.cancel(self.accepted[which % len(self.accepted)])
            collect([] if last is None else [last], self.answers)

    @rule()
    def forward_fails(self):
        self.decoder.fail_next = EngineFailure("kernel broke")
        deltas = self.engine.step()
        self.num_failed += len({delta.request_id for delta in deltas})
        collect(deltas, self.answers)
        self.decoder.fail_next = None

    @invariant()
    def batches_are_within_their_limits(self):
        if not hasattr(self, "engine"):
            return
        for num_tokens, num_seqs, num_samples, longest, max_context_len in self.decoder.batch_sizes:
            assert 1 <= num_seqs <= num_tokens <= MAX_NUM_BATCHED_TOKENS
            assert num_seqs <= MAX_NUM_SEQS
            assert 1 <= num_samples <= num_seqs
            assert longest == max_context_len
        self.decoder.batch_sizes.clear()

    @invariant()
    def blocks_and_queues_are_consistent(self):
        if not hasattr(self, "engine"):
            return
        self.engine.check_integrity()
        scheduler = self.engine._scheduler
        assert scheduler.num_seats_taken <= MAX_NUM_SEQS
        for sequence in scheduler.running:
            needed = -(-sequence.num_computed_tokens // BLOCK_SIZE)
            assert needed <= sequence.table.num_blocks <= -(-sequence.num_tokens // BLOCK_SIZE)
            assert 0 <= sequence.num_computed_tokens < sequence.num_tokens
        for sequence in scheduler.waiting:
            assert (sequence.table.num_blocks, sequence.num_computed_tokens) == (0, 0)
        assert not set(scheduler.running) & set(scheduler.waiting)

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        # Nobody starves: at least the first running sequence gets a token or a chunk in each step.
        for _ in range(5000):
            if not self.engine.has_work:
                break
            collect(self.engine.step(), self.answers)
        assert_is_idle(self.engine)
        assert set(self.answers) == set(self.accepted)
        for request_id, answer in self.answers.items():
            assert answer.num_last == 1
            assert all(len(tokens) <= self.limits[request_id] for tokens in answer.token_ids.values())
        stats = self.engine.stats()
        assert stats.num_failed == self.num_failed
        assert stats.num_completed + stats.num_cancelled + stats.num_failed == stats.num_accepted == len(self.accepted)


Requests.TestCase.settings = settings(max_examples=100, stateful_step_count=30)
test_requests_when_added_cancelled_and_failed_at_random_then_all_end = Requests.TestCase
