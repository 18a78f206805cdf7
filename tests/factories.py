"""Builders for engine tests: a request, an engine, its decoders, and what a request got out of it. Nothing here keeps state."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tandem.engine import EngineConfig, LLMEngine
from tandem.guided.compiler import GrammarCompiler
from tandem.models.decoder import Decoder, DecoderBatch, DecoderInfo, DecoderOutput
from tandem.types import CacheHints, EngineRequest, FinishReason, Guide, RequestId, SamplingParams, SequenceDelta
from tests.tiny_model import PagedTinyDecoder, TinyModel, output_of

_request_numbers = itertools.count()


def make_request(
    prompt_ids: Sequence[int] = (5, 6, 7),
    *,
    request_id: str | None = None,
    cache: CacheHints | None = None,
    guide: Guide | None = None,
    **sampling,
) -> EngineRequest:
    """A greedy request of 8 new tokens; other keyword arguments are fields of SamplingParams."""
    sampling.setdefault("max_tokens", 8)
    name = f"r{next(_request_numbers)}" if request_id is None else request_id
    return EngineRequest(RequestId(name), tuple(prompt_ids), SamplingParams(**sampling), cache or CacheHints(), guide)


def make_prompt(seed: int, num_tokens: int, vocab_size: int = 61) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, vocab_size, num_tokens).tolist())


def make_decoder(*, seed: int = 0, **options) -> PagedTinyDecoder:
    """A tiny float64 decoder; options are num_blocks, block_size, max_seq_len."""
    return PagedTinyDecoder(TinyModel(seed), **options)


def make_engine(decoder: Decoder | None = None, *, grammars: GrammarCompiler | None = None, **config) -> LLMEngine:
    """An engine over a tiny decoder with small limits; keyword arguments are fields of EngineConfig."""
    config.setdefault("max_num_seqs", 4)
    config.setdefault("max_num_batched_tokens", 16)
    return LLMEngine(make_decoder() if decoder is None else decoder, EngineConfig(**config), grammars=grammars)


class ScriptedDecoder:
    """Gives the same row of logits for every sampled row; ``row`` may be replaced between steps, ``fail_next`` makes it raise."""

    def __init__(self, row: Sequence[float], *, num_blocks: int = 64, block_size: int = 4, max_seq_len: int = 96) -> None:
        self.row = np.array(row, np.float64)
        self.info = DecoderInfo(len(self.row), block_size, num_blocks, max_seq_len, kv_bytes_per_token=8)
        self.fail_next: Exception | None = None
        self.num_forwards = 0

    def forward(self, batch: DecoderBatch) -> DecoderOutput:
        self.num_forwards += 1
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        return output_of(self.rows(batch))

    def rows(self, batch: DecoderBatch) -> np.ndarray:
        return np.tile(self.row, (len(batch.sample_idx), 1))

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        pass


@dataclass
class Answer:
    """What one request got: per sequence index its tokens and numbers, and how it ended."""

    token_ids: dict[int, list[int]] = field(default_factory=dict)
    entropies: dict[int, list[float]] = field(default_factory=dict)
    log_probs: dict[int, list[float]] = field(default_factory=dict)
    top: dict[int, list] = field(default_factory=dict)
    cum_log_prob: dict[int, float] = field(default_factory=dict)
    finish_reasons: dict[int, FinishReason] = field(default_factory=dict)
    error: str | None = None
    num_last: int = 0
    num_cached_tokens: int = 0

    @property
    def tokens(self) -> list[int]:
        """Of the only sequence."""
        assert set(self.token_ids) == {0}
        return self.token_ids[0]

    @property
    def finish_reason(self) -> FinishReason:
        assert set(self.finish_reasons) == {0}
        return self.finish_reasons[0]

    def take(self, delta: SequenceDelta) -> None:
        assert self.num_last == 0, "a delta after the last one"
        index = delta.sequence_index
        assert index not in self.finish_reasons, "a delta of a sequence that has ended"
        self.token_ids.setdefault(index, []).extend(delta.token_ids)
        self.entropies.setdefault(index, []).extend(delta.entropies)
        self.log_probs.setdefault(index, []).extend(delta.log_probs)
        self.top.setdefault(index, []).extend(delta.top)
        self.cum_log_prob[index] = delta.cum_log_prob
        if delta.finish_reason is not None:
            self.finish_reasons[index] = delta.finish_reason
        self.error = delta.error
        self.num_cached_tokens = delta.num_cached_tokens
        self.num_last += delta.is_last


def collect(deltas: Iterable[SequenceDelta], answers: dict[str, Answer] | None = None) -> dict[str, Answer]:
    answers = {} if answers is None else answers
    for delta in deltas:
        answers.setdefault(delta.request_id, Answer()).take(delta)
    return answers


def run_all(engine: LLMEngine, requests: Iterable[EngineRequest], *, max_steps: int = 5000) -> dict[str, Answer]:
    """Add all requests, step until the engine is empty; every request must have ended and every block must be free."""
    for request in requests:
        engine.add(engine.prepare(request))
    answers: dict[str, Answer] = {}
    for _ in range(max_steps):
        if not engine.has_work:
            break
        collect(engine.step(), answers)
        engine.check_integrity()
    assert_is_idle(engine)
    return answers


def run_one(engine: LLMEngine, request: EngineRequest) -> Answer:
    return run_all(engine, [request])[request.request_id]


def assert_is_idle(engine: LLMEngine) -> None:
    """No request left, every block free, nothing running or waiting."""
    stats = engine.stats()
    assert not engine.has_work
    assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 0, 0)
    assert stats.num_free_blocks == stats.num_blocks
    engine.check_integrity()


def kept_probs(logits: np.ndarray, *, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """The distribution that is drawn from, by full sorts in float64. [vocab_size]"""
    probs = np.exp((logits - logits.max()) / temperature)
    probs[probs < min_p] = 0.0
    order = np.argsort(-probs, kind="stable")
    if top_k > 0:
        probs[order[top_k:]] = 0.0
    if top_p < 1.0:
        cumulative = np.cumsum(probs[order]) / probs.sum()
        probs[order[np.searchsorted(cumulative, top_p * (1.0 - 1e-6)) + 1 :]] = 0.0
    return probs / probs.sum()
