"""The engine: requests in, one step at a time, deltas out. Single-threaded; :mod:`tandem.engine.async_engine` gives it a thread.

The life of a request:

1. ``prepare`` checks it and builds its state; ``add`` puts its first sequence into the waiting queue.
2. ``step`` lets the scheduler plan, the model runner compute and the sampler choose; every sequence that caught up gets one token.
3. With n > 1 the siblings fork off when the prompt is computed: they share its blocks, and all sample from the same row.
4. A sequence ends by end token, stop word, length; a request ends with its last sequence, by ``cancel``, or by a failure.
5. Its blocks are free again before its last delta is returned. That delta, and no other, has ``is_last``. Full blocks can still be
   found by their content, by running and later sequences, until they are evicted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from time import perf_counter

from tandem.engine.admission import AdmissionRules
from tandem.engine.config import EngineConfig
from tandem.engine.kv_cache import KvCache
from tandem.engine.metrics import EngineCounters, EngineStats
from tandem.engine.model_runner import ModelRunner
from tandem.engine.sampler import SampledTokens, Sampler
from tandem.engine.scheduler import ScheduledBatch, Scheduler
from tandem.engine.sequence import Request, Sequence
from tandem.engine.waiting import WaitingQueue, make_waiting_queue
from tandem.errors import EngineFailure, InvalidRequest, TandemError, Unsupported, to_wire
from tandem.guided.compiler import GrammarCompiler
from tandem.models.decoder import Decoder, DecoderOutput
from tandem.types import FORCED_ENTROPY, EngineRequest, FinishReason, RequestId, SequenceDelta

_log = logging.getLogger(__name__)


class LLMEngine:
    """Drives one decoder. All methods but ``prepare`` belong to one thread."""

    def __init__(
        self,
        decoder: Decoder,
        config: EngineConfig,
        waiting: WaitingQueue | None = None,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """``grammars``: over the decoder's vocabulary; None refuses guided requests."""
        info = decoder.info
        self.grammars = grammars
        self._config = config
        self._rules = AdmissionRules(info, config)
        self._max_blocks_per_seq = -(-self._rules.max_seq_len // info.block_size)
        self._kv = KvCache(info.num_blocks, info.block_size, has_prefix_cache=config.has_prefix_cache)
        self._waiting = (
            waiting
            if waiting is not None
            else make_waiting_queue(
                config.scheduling_policy, slo_ttft_ms=config.slo_ttft_ms, tokens_per_step=config.max_num_batched_tokens
            )
        )
        self._scheduler = Scheduler(
            self._kv,
            self._waiting,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )
        self._runner = ModelRunner(
            decoder,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_blocks_per_seq=self._max_blocks_per_seq,
        )
        self._sampler = Sampler(info.vocab_size)
        self._requests: dict[RequestId, Request] = {}
        self._counters = EngineCounters()

    @property
    def config(self) -> EngineConfig:
        return self._config

    @property
    def max_seq_len(self) -> int:
        return self._rules.max_seq_len

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def prepare(self, request: EngineRequest, *, with_grammar: bool = True) -> Request:
        """Check a request and build its state. Modifies nothing; any thread may call it.

        Compiles the guide unless ``with_grammar`` is False; then ``use_grammar`` of the result is the caller's to call.
        Raises: InvalidRequest, ContextLengthExceeded.
        """
        params = self._rules.resolve(request)
        prepared = Request(request, params, self._max_blocks_per_seq, has_jump_forward=self._config.has_jump_forward)
        if request.guide is not None:
            if self.grammars is None:
                raise Unsupported("guided_decoding_guide_type", request.guide.type.value, "this engine has no guided decoding")
            if with_grammar:
                prepared.use_grammar(self.grammars.compile(request.guide))
        return prepared

    def add(self, request: Request) -> None:
        """Accept a prepared request. Raises: InvalidRequest when its id is in use."""
        if request.request_id in self._requests:
            raise InvalidRequest("request_id", request.request_id, "a request with this id is running; give each its own")
        assert not request.waits_for_grammar
        request.arrival = self._counters.num_accepted
        request.accepted_at_s = perf_counter()
        self._counters.num_accepted += 1
        self._requests[request.request_id] = request
        self._scheduler.add(request.sequences[0])

    def step(self) -> list[SequenceDelta]:
        """Compute one batch. Returns one delta per sequence that got a token or ended; empty when there was no work.

        A failure of the decoder ends the requests of that batch, each with one delta that carries the error; it is not raised.
        """
        started, kernel_before = perf_counter(), self._runner.kernel_time_s
        try:
            return self._step()
        finally:
            kernel_time = self._runner.kernel_time_s - kernel_before
            self._counters.kernel_time_s += kernel_time
            self._counters.outside_time_s += perf_counter() - started - kernel_time

    def cancel(self, request_id: RequestId) -> SequenceDelta | None:
        """End a request now and free its blocks; None when no such request is in the engine."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        self._counters.num_cancelled += 1
        return self._end_early(request, FinishReason.CANCELLED, None)

    def fail(self, requests: Iterable[RequestId], error: TandemError) -> list[SequenceDelta]:
        """End requests with an error; ids that are not in the engine are passed over."""
        found = [self._requests[request_id] for request_id in requests if request_id in self._requests]
        self._counters.num_failed += len(found)
        return [self._end_early(request, FinishReason.ERROR, error) for request in found]

    def fail_all(self, error: TandemError) -> list[SequenceDelta]:
        """End every request with an error; the engine is empty afterwards."""
        self._kv.take_copies()  # copies planned for a step that broke off must not run in a later one
        return self.fail(list(self._requests), error)

    def check_integrity(self) -> None:
        """Hold the pool against all living block tables. Cheap when idle. Raises: AssertionError."""
        self._kv.pool.check(
            sequence.table.to_list()
            for request in self._requests.values()
            for sequence in request.sequences
            if not sequence.is_finished
        )

    def reclaim_leaked_blocks(self) -> int:
        """When no request is left, every block must be free. Frees and counts those that are not; 0 unless there is a bug."""
        assert not self._requests
        num_leaked = self._kv.pool.num_used
        if num_leaked:
            _log.error("%d KV blocks were still in use with no request left; they are free again", num_leaked)
            self._counters.num_leaked_blocks += num_leaked
            self._kv.reset()
        return num_leaked

    def add_outside_time(self, seconds: float) -> None:
        """Count time that the loop around this engine spends on handing out deltas."""
        self._counters.outside_time_s += seconds

    def stats(self) -> EngineStats:
        counters, pool = self._counters, self._kv.pool
        return EngineStats(
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            max_num_seqs=self._config.max_num_seqs,
            num_blocks=pool.num_blocks,
            num_used_blocks=pool.num_used,
            num_free_blocks=pool.num_free,
            block_size=self._kv.block_size,
            num_steps=counters.num_steps,
            num_context_tokens=counters.num_context_tokens,
            num_generated_tokens=counters.num_generated_tokens,
            num_prompt_tokens=self._scheduler.num_prompt_tokens,
            num_cached_tokens=self._scheduler.num_cached_tokens,
            num_cached_blocks=pool.num_cached,
            num_reused_blocks=self._scheduler.num_reused_blocks,
            num_evictions=pool.num_evictions,
            num_preemptions=self._scheduler.num_preemptions,
            num_accepted=counters.num_accepted,
            num_started=counters.num_started,
            num_completed=counters.num_completed,
            num_cancelled=counters.num_cancelled,
            num_failed=counters.num_failed,
            num_leaked_blocks=counters.num_leaked_blocks,
            queue_time_s=counters.queue_time_s,
            kernel_time_s=counters.kernel_time_s,
            outside_time_s=counters.outside_time_s,
        )

    @property
    def num_seats_free(self) -> int:
        return self._config.max_num_seqs - self._scheduler.num_seats_taken

    @property
    def num_waiting(self) -> int:
        return len(self._scheduler.waiting)

    def _step(self) -> list[SequenceDelta]:
        batch = self._scheduler.schedule()
        if not batch.sequences:
            assert not self._requests, "there is work but nothing could be scheduled"
            return []
        self._counters.num_steps += 1
        self._note_started(batch)
        kernel_before = self._runner.kernel_time_s
        try:
            output, sampled = self._runner.run(batch)
        except Exception as error:
            _log.exception("the forward pass failed; the %d sequences of its batch end", len(batch.sequences))
            failed = dict.fromkeys(sequence.request.request_id for sequence in batch.sequences)
            return self.fail(failed, _as_failure(error))
        num_decodes = batch.num_tokens.count(1)
        step_ms = (self._runner.kernel_time_s - kernel_before) * 1e3
        self._waiting.note_step(sum(batch.num_tokens) - num_decodes, num_decodes, step_ms)
        return self._take_output(batch, output, sampled)

    def _note_started(self, batch: ScheduledBatch) -> None:
        now_s = perf_counter()
        for sequence in batch.sequences:
            request = sequence.request
            if not request.has_started:
                request.has_started = True
                self._counters.num_started += 1
                self._counters.queue_time_s += now_s - request.accepted_at_s

    def _take_output(self, batch: ScheduledBatch, output: DecoderOutput, sampled: list[int]) -> list[SequenceDelta]:
        for sequence, num_tokens in zip(batch.sequences, batch.num_tokens, strict=True):
            sequence.num_computed_tokens += num_tokens
            self._kv.publish(sequence.table, sequence.token_ids, sequence.num_computed_tokens)
            if num_tokens > sequence.num_ahead or not sequence.output_ids:
                self._counters.num_context_tokens += num_tokens
        if not sampled:
            return []
        sequences: list[Sequence] = []
        rows: list[int] = []
        for row, position in enumerate(sampled):
            sequence = batch.sequences[position]
            sequences.append(sequence)
            if sequence.num_seats > 1:
                siblings = sequence.request.add_siblings(self._max_blocks_per_seq)
                self._scheduler.fork(sequence, siblings)
                sequences += siblings
            rows += [row] * (len(sequences) - len(rows))
        return self._take_tokens(sequences, self._sampler.sample(sequences, rows, output))

    def _take_tokens(self, sequences: list[Sequence], tokens: SampledTokens) -> list[SequenceDelta]:
        deltas: list[SequenceDelta] = []
        for i, sequence in enumerate(sequences):
            if sequence.is_finished:  # a sibling failed in this very step and took the request with it
                continue
            token = tokens.token_ids[i]
            if isinstance(token, TandemError):
                # The request's earlier deltas of this step may stand: they hold good tokens and none of them is the last.
                deltas += self.fail([sequence.request.request_id], token)
                continue
            try:
                deltas += self._take_token(sequence, token, tokens, i)
            except TandemError as error:  # the grammar gave up
                deltas += self.fail([sequence.request.request_id], error)
        return deltas

    def _take_token(self, sequence: Sequence, token: int, tokens: SampledTokens, i: int) -> list[SequenceDelta]:
        """Append a sampled token and those that the guide forces after it. Raises: TandemError when the grammar gives up."""
        if token == sequence.request.end_id:
            return [self._ended(sequence, FinishReason.STOP)]
        sequence.cum_log_prob += tokens.log_probs[i]
        reason = self._append(sequence, token)
        appended, entropies = [token], [tokens.entropies[i]]
        if reason is None and sequence.matcher is not None and sequence.can_jump:
            for forced in sequence.matcher.forced_tokens():
                reason = self._append(sequence, forced)
                appended.append(forced)
                entropies.append(FORCED_ENTROPY)
                if reason is not None:
                    break
        sequence.num_ahead = len(appended)
        # Where nothing can follow, the end token needs no step of its own; what is told is as if it had had one.
        is_complete = reason is None and sequence.matcher is not None and sequence.matcher.is_complete
        if reason is not None:
            self._finish(sequence)
        delta = SequenceDelta(
            sequence.request.request_id,
            sequence.index,
            tuple(appended),
            tuple(entropies),
            (tokens.log_probs[i],) if sequence.params.return_log_probs else (),
            tokens.top[i],
            sequence.cum_log_prob,
            reason,
            reason is not None and sequence.request.num_unfinished == 0,
            num_cached_tokens=sequence.request.num_cached_tokens or 0,
        )
        return [delta, self._ended(sequence, FinishReason.STOP)] if is_complete else [delta]

    def _append(self, sequence: Sequence, token: int) -> FinishReason | None:
        self._counters.num_generated_tokens += 1
        if sequence.matcher is not None:
            sequence.matcher.consume(token)
        return sequence.append(token)

    def _ended(self, sequence: Sequence, reason: FinishReason) -> SequenceDelta:
        """Finish a sequence; returns the delta without tokens that says so."""
        self._finish(sequence)
        request = sequence.request
        return SequenceDelta(
            request.request_id,
            sequence.index,
            (),
            cum_log_prob=sequence.cum_log_prob,
            finish_reason=reason,
            is_last=request.num_unfinished == 0,
            num_cached_tokens=request.num_cached_tokens or 0,
        )

    def _finish(self, sequence: Sequence) -> None:
        """End one sequence in the regular way, and its request if it was the last."""
        request = sequence.request
        self._scheduler.remove(sequence, is_complete=True)
        sequence.is_finished = True
        request.num_unfinished -= 1
        if request.num_unfinished == 0:
            self._forget(request)
            self._counters.num_completed += 1

    def _end_early(self, request: Request, reason: FinishReason, error: TandemError | None) -> SequenceDelta:
        """End all sequences of a request; returns its one last delta."""
        unfinished = [sequence for sequence in request.sequences if not sequence.is_finished]
        for sequence in unfinished:
            self._scheduler.remove(sequence)
            sequence.is_finished = True
        request.num_unfinished = 0
        self._forget(request)
        return SequenceDelta(
            request.request_id,
            unfinished[0].index,
            (),
            cum_log_prob=unfinished[0].cum_log_prob,
            finish_reason=reason,
            is_last=True,
            error=None if error is None else to_wire(error),
            num_cached_tokens=request.num_cached_tokens or 0,
        )

    def _forget(self, request: Request) -> None:
        del self._requests[request.request_id]
        request.sequences.clear()  # no reference cycle is left, so its arrays are freed now


def _as_failure(error: Exception) -> TandemError:
    """What the callers of a failed batch are told; the traceback is in the log."""
    if isinstance(error, TandemError):
        return error
    return EngineFailure("the forward pass failed; the requests of its batch end, others go on")
