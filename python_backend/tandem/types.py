"""The nouns that cross package borders: sampling parameters, engine request, engine output."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import NewType

from tandem.errors import InvalidRequest

RequestId = NewType("RequestId", str)
"""Names one request inside one engine; the ``stop`` tensor addresses it."""


class FinishReason(str, Enum):
    """Why a sequence ended; the values are those of the OpenAI API."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class Path(str, Enum):
    """The two sides of Tandem."""

    FAST = "fast"
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. Defaults are greedy decoding, as in the ``tensorrt_llm`` contract.

    ``temperature`` 0 or ``top_k`` 1 means greedy. ``top_k`` 0 and ``top_p`` 1 mean "no cut". ``logit_bias`` is sparse:
    token id -> additive bias. ``stop_words`` and ``bad_words`` are token-id sequences.
    ``top_logprobs`` is the number of alternatives reported per generated token.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    end_id: int | None = None
    stop_words: tuple[tuple[int, ...], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    num_return_sequences: int = 1
    return_log_probs: bool = False
    top_logprobs: int = 0

    def __post_init__(self) -> None:
        _check_int("max_tokens", self.max_tokens, 1, None)
        _check_int("min_tokens", self.min_tokens, 0, None)
        _check_float("temperature", self.temperature, 0.0, None)
        _check_int("top_k", self.top_k, 0, None)
        _check_float("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _check_float("min_p", self.min_p, 0.0, 1.0)
        _check_float("repetition_penalty", self.repetition_penalty, 0.0, None, low_open=True)
        _check_float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _check_int("num_return_sequences", self.num_return_sequences, 1, 128)
        _check_int("top_logprobs", self.top_logprobs, 0, 20)
        if self.seed is not None:
            _check_int("seed", self.seed, 0, 2**64 - 1)
        for name, words in (("stop_words", self.stop_words), ("bad_words", self.bad_words)):
            if any(len(word) == 0 for word in words):
                raise InvalidRequest(name, "an empty word", "leave empty words out")
        for token_id, bias in self.logit_bias:
            if not math.isfinite(bias):
                raise InvalidRequest("logit_bias", f"{token_id}: {bias}", "use finite numbers")

    @property
    def is_greedy(self) -> bool:
        """True when the highest logit wins and no random number is drawn."""
        return self.temperature == 0.0 or self.top_k == 1


DEFAULT_RETENTION_PRIORITY = 35
"""Of KV blocks without a rule; TensorRT-LLM's."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What keeping a KV block is worth: ``priority`` 0 (given up first) to 100, the default again after ``duration_s``."""

    priority: int = DEFAULT_RETENTION_PRIORITY
    duration_s: float | None = None

    def __post_init__(self) -> None:
        _check_int("retention priority", self.priority, 0, 100)
        if self.duration_s is not None:
            _check_float("retention duration", self.duration_s, 0.0, None)


@dataclass(frozen=True, slots=True)
class RetentionRange:
    """A rule for the prompt tokens from ``start`` up to but not including ``end`` (None: the end of the prompt)."""

    start: int
    end: int | None
    retention: Retention

    def __post_init__(self) -> None:
        _check_int("retention range start", self.start, 0, None)
        if self.end is not None:
            _check_int("retention range end", self.end, self.start, None)


@dataclass(frozen=True, slots=True)
class CacheHints:
    """Whose KV blocks a request may reuse, and how long its own are worth keeping.

    Blocks are shared between requests of equal ``salt`` only. The part before its first "/" names the tenant, for fair eviction;
    what follows narrows the sharing within the tenant. ``decode`` is the rule for generated tokens.
    """

    salt: str = ""
    ranges: tuple[RetentionRange, ...] = ()
    decode: Retention | None = None

    @property
    def tenant(self) -> str:
        return self.salt.partition("/")[0]

    def retention_at(self, position: int, num_prompt_tokens: int) -> Retention | None:
        """The rule for the token at ``position``: the first range that holds it; None when nothing is said."""
        if position >= num_prompt_tokens:
            return self.decode
        for rule in self.ranges:
            if rule.start <= position < (num_prompt_tokens if rule.end is None else rule.end):
                return rule.retention
        return None


class GuideType(str, Enum):
    """How the text of a guide is to be read; the values are those of the tensor ``guided_decoding_guide_type``."""

    JSON = "json"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    EBNF_GRAMMAR = "ebnf_grammar"
    STRUCTURAL_TAG = "structural_tag"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class Guide:
    """What the whole answer must match; see ``tandem.protocol.GUIDE_TYPES``. Says nothing about whether ``text`` is valid."""

    type: GuideType
    text: str = ""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What one engine is asked to do: token ids in, token ids out. Knows no text but that of the guide."""

    request_id: RequestId
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    cache: CacheHints = CacheHints()
    guide: Guide | None = None


@dataclass(frozen=True, slots=True)
class TokenLogProbs:
    """The alternatives of one position: ids and log-probabilities (nats, unmasked distribution), best first."""

    ids: tuple[int, ...]
    log_probs: tuple[float, ...]


FORCED_ENTROPY = -1.0
"""Stands for the entropy of a token that a guide left no alternative to: none is negative, so statistics can leave it out."""


@dataclass(frozen=True, slots=True)
class SequenceDelta:
    """New tokens of one sequence of one request.

    ``token_ids`` never contains the end token (TensorRT-LLM contract: an end of turn is a delta without tokens and
    ``finish_reason`` STOP). ``log_probs`` and ``entropies`` (nats, of the distribution before any processor) run parallel to
    ``token_ids``; ``log_probs`` is empty unless asked for, ``top`` is empty unless ``top_logprobs`` > 0. A token
    that a guide left no alternative to has FORCED_ENTROPY.
    ``is_last`` is True for exactly one delta of the whole request: the one after which nothing follows.
    ``num_cached_tokens`` are the tokens of the prompt that were not computed because an earlier request had; the same in every
    delta of a request that has begun.
    """

    request_id: RequestId
    sequence_index: int
    token_ids: tuple[int, ...]
    entropies: tuple[float, ...] = ()
    log_probs: tuple[float, ...] = ()
    top: tuple[TokenLogProbs, ...] = ()
    cum_log_prob: float = 0.0
    finish_reason: FinishReason | None = None
    is_last: bool = False
    error: str | None = None
    num_cached_tokens: int = 0


def _check_int(name: str, value: object, low: int, high: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        raise InvalidRequest(name, value, f"give a whole number {_range(low, high)}")


def _check_float(name: str, value: float, low: float, high: float | None, *, low_open: bool = False) -> None:
    is_low = value <= low if low_open else value < low
    if isinstance(value, bool) or not math.isfinite(value) or is_low or (high is not None and value > high):
        raise InvalidRequest(
            name,
            value,
            f"give a number {'above' if low_open else 'from'} {low:g}" + (f" to {high:g}" if high is not None else ""),
        )


def _range(low: int, high: int | None) -> str:
    return f"from {low} to {high}" if high is not None else f"of at least {low}"
