"""The input tensors of an engine model to what the engine is asked for: one :class:`EngineCall` per row of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tandem.errors import InvalidRequest, Unsupported
from tandem.protocol import GUIDE_TYPES
from tandem.triton.tensors import RowReader, Tensors, count_rows
from tandem.types import CacheHints, Guide, GuideType, Retention, RetentionRange, SamplingParams

_N = TypeVar("_N", int, float)

# Tensors of the contract that ask for something a decoder-only engine on a CPU has not. They are declared, so that one client
# serves all profiles, and refused as soon as they carry data.
_REFUSED: dict[str, str] = {
    **dict.fromkeys(
        ("encoder_input_features", "encoder_output_lengths", "decoder_input_ids", "decoder_input_lengths"),
        "this engine is decoder-only",
    ),
    **dict.fromkeys(
        ("cross_attention_mask", "skip_cross_attn_blocks", "mrope_rotary_cos_sin", "mrope_position_deltas"),
        "this engine takes text only",
    ),
    **dict.fromkeys(
        ("prompt_embedding_table", "prompt_table_extra_ids", "prompt_vocab_size"), "this engine has no prompt embedding table"
    ),
    **dict.fromkeys(("lora_task_id", "lora_weights", "lora_config"), "this engine has no LoRA adapters"),
    **dict.fromkeys(("draft_input_ids", "draft_logits", "draft_acceptance_threshold"), "this engine takes no draft tokens"),
    **dict.fromkeys(
        ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size"),
        "this engine has no lookahead decoding",
    ),
    "context_phase_params": "this engine does prefill and decode in one place",
}

_REFUSED_FLAGS = {
    "return_context_logits": "ask for return_log_probs instead",
    "return_generation_logits": "ask for output_entropy or top_logprobs instead",
}

# How long KV blocks are worth keeping for later requests; one value each per range of prompt tokens.
_RETENTION = ("retention_token_range_starts", "retention_token_range_ends", "retention_token_range_priorities")

# Without effect by the contract itself: beam search parameters at beam width 1, pad_id (one row per sequence is never padded),
# runtime_top_p_min and runtime_top_p_reset_ids (they belong to runtime_top_p_decay, which is refused unless it is 1).


@dataclass(frozen=True, slots=True)
class ResponseOptions:
    """What the caller wants to see of an answer. ``exclude_input`` None: as the model's parameter says."""

    streaming: bool
    exclude_input: bool | None
    return_perf_metrics: bool
    return_num_input_tokens: bool
    return_num_output_tokens: bool


@dataclass(frozen=True, slots=True)
class EngineCall:
    """One row of one request."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    options: ResponseOptions
    cache: CacheHints
    guide: Guide | None = None


def is_stop(inputs: Tensors) -> bool:
    """True when the request only cancels another one."""
    return bool(RowReader(inputs, 0).flag("stop"))


def read_calls(inputs: Tensors, vocab_size: int) -> tuple[EngineCall, ...]:
    """All rows, or the first error. Raises: InvalidRequest; Unsupported naming the tensor."""
    return tuple(_read_call(RowReader(inputs, row), vocab_size) for row in range(count_rows(inputs)))


def _read_call(row: RowReader, vocab_size: int) -> EngineCall:
    _refuse_unsupported(row)
    return EngineCall(
        prompt_ids=_prompt_ids(row),
        sampling=_sampling(row, vocab_size),
        options=ResponseOptions(
            streaming=bool(row.flag("streaming")),
            exclude_input=row.flag("exclude_input_in_output"),
            return_perf_metrics=bool(row.flag("return_perf_metrics")),
            return_num_input_tokens=bool(row.flag("return_num_input_tokens")),
            return_num_output_tokens=bool(row.flag("return_num_output_tokens")),
        ),
        cache=_cache_hints(row),
        guide=_guide(row),
    )


def _refuse_unsupported(row: RowReader) -> None:
    for name, why in _REFUSED.items():
        if row.has_data(name):
            raise Unsupported(name, "a tensor with data", f"{why}; leave it out")
    for name, remedy in _REFUSED_FLAGS.items():
        if row.flag(name):
            raise Unsupported(name, "true", f"this engine does not hand out logits; {remedy}")
    beam_width = row.integer("beam_width")
    if beam_width not in (None, 1):
        raise Unsupported("beam_width", beam_width, "this engine has no beam search; use num_return_sequences")
    decay = row.number("runtime_top_p_decay")
    if decay not in (None, 1.0):
        raise Unsupported("runtime_top_p_decay", decay, "this engine does not change top_p while it decodes; leave it out")


def _cache_hints(row: RowReader) -> CacheHints:
    """Salt and retention; an end of -1 is the end of the prompt, a duration of -1 has no end."""
    lengths = [row.size(name) for name in _RETENTION]
    if len(set(lengths)) != 1:
        raise InvalidRequest(_RETENTION[0], f"{lengths} values", f"give {', '.join(_RETENTION)} the same number of values")
    starts, ends, priorities = (row.integers(name) for name in _RETENTION)
    durations = row.integers("retention_token_range_durations_ms") or (-1,) * len(starts)
    if len(durations) != len(starts):
        raise InvalidRequest("retention_token_range_durations_ms", f"{len(durations)} values", f"give {len(starts)}, one per range")
    ranges = []
    for start, end, priority, duration_ms in zip(starts, ends, priorities, durations, strict=True):
        if start < 0 or (end != -1 and end < start):
            raise InvalidRequest(_RETENTION[0], f"{start} to {end}", "give a start of at least 0 and an end behind it, or -1")
        retention = _retention(_RETENTION[2], priority, "retention_token_range_durations_ms", duration_ms)
        ranges.append(RetentionRange(start, None if end == -1 else end, retention))
    return CacheHints(row.text("cache_salt") or "", tuple(ranges), _decode_retention(row))


def _guide(row: RowReader) -> Guide | None:
    """As it was sent; the engine finds out whether it compiles. An unknown type is refused, TensorRT-LLM would ignore it."""
    kind, text = row.text("guided_decoding_guide_type"), row.text("guided_decoding_guide")
    if kind is None:
        if text is not None:
            raise InvalidRequest("guided_decoding_guide_type", "nothing", "say how guided_decoding_guide is to be read")
        return None
    if kind not in GUIDE_TYPES:
        raise InvalidRequest("guided_decoding_guide_type", kind, f"use one of {', '.join(GUIDE_TYPES)}")
    return Guide(GuideType(kind), text or "")


def _decode_retention(row: RowReader) -> Retention | None:
    priority, duration_ms = row.integer("retention_decode_priority"), row.integer("retention_decode_duration_ms")
    if priority is not None:
        return _retention("retention_decode_priority", priority, "retention_decode_duration_ms", _or(duration_ms, -1))
    if duration_ms is not None:
        raise InvalidRequest("retention_decode_duration_ms", duration_ms, "give retention_decode_priority as well")
    return None


def _retention(priority_name: str, priority: int, duration_name: str, duration_ms: int) -> Retention:
    if not 0 <= priority <= 100:
        raise InvalidRequest(priority_name, priority, "give a whole number from 0 to 100")
    if duration_ms < -1:
        raise InvalidRequest(duration_name, duration_ms, "give milliseconds, or -1 for no end")
    return Retention(priority, None if duration_ms == -1 else duration_ms / 1e3)


def _prompt_ids(row: RowReader) -> tuple[int, ...]:
    ids = row.integers("input_ids")
    length = row.integer("input_lengths")
    if not ids:
        raise InvalidRequest("input_ids", "no tokens", "give at least one prompt token")
    if length is None or not 1 <= length <= len(ids):
        raise InvalidRequest("input_lengths", length, f"give a number from 1 to {len(ids)}, the width of input_ids")
    return ids[:length]


def _sampling(row: RowReader, vocab_size: int) -> SamplingParams:
    """Greedy unless top_k, top_p or min_p ask for sampling; then the temperature is 1 unless given."""
    max_tokens = row.integer("request_output_len")
    if max_tokens is None or max_tokens < 1:
        raise InvalidRequest("request_output_len", max_tokens, "give the largest number of new tokens, at least 1")
    top_k = row.integer("runtime_top_k") or 0
    top_p = row.number("runtime_top_p")
    if top_p is not None and top_p <= 0.0:  # the contract reads it as "not given"
        top_p = None
    min_p = row.number("min_p") or 0.0
    is_sampled = top_k != 0 or top_p is not None or min_p != 0.0
    temperature = row.number("temperature")
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=row.integer("min_tokens") or 0,
        temperature=(1.0 if temperature is None else temperature) if is_sampled else min(temperature or 0.0, 0.0),
        top_k=top_k,
        top_p=1.0 if top_p is None else top_p,
        min_p=min_p,
        seed=row.integer("seed"),
        repetition_penalty=_or(row.number("repetition_penalty"), 1.0),
        presence_penalty=_or(row.number("presence_penalty"), 0.0),
        frequency_penalty=_or(row.number("frequency_penalty"), 0.0),
        logit_bias=_logit_bias(row, vocab_size),
        end_id=row.integer("end_id"),
        stop_words=row.words("stop_words_list"),
        bad_words=row.words("bad_words_list"),
        num_return_sequences=_or(row.integer("num_return_sequences"), 1),
        return_log_probs=bool(row.flag("return_log_probs")),
        top_logprobs=row.integer("top_logprobs") or 0,
    )


def _logit_bias(row: RowReader, vocab_size: int) -> tuple[tuple[int, float], ...]:
    """``embedding_bias`` is dense, one number per id of the vocabulary (the padding of a model's head may be left out)."""
    bias = row.floats("embedding_bias")
    if bias.size > vocab_size:
        raise InvalidRequest("embedding_bias", f"{bias.size} values", f"give one per id, {vocab_size}")
    if not np.isfinite(bias).all():
        raise InvalidRequest("embedding_bias", "a value that is not finite", "use finite numbers")
    return tuple((int(token), float(str(bias[token]))) for token in np.flatnonzero(bias))


def _or(value: _N | None, default: _N) -> _N:
    return default if value is None else value
