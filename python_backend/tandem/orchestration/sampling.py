"""A caller's sampling (``TextSampling``) to what an engine is asked for (``SamplingParams``), every field checked by its name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

from tandem.errors import ContextLengthExceeded, InvalidRequest
from tandem.orchestration.config import EngineInfo
from tandem.orchestration.port import TextSampling
from tandem.text.stop_strings import check_stop_strings
from tandem.text.tokenizer import Tokenizer
from tandem.types import SamplingParams

MAX_LOGIT_BIAS = 100.0
_N = TypeVar("_N", int, float)
_MAX_BAD_WORDS = 64


@dataclass(frozen=True, slots=True)
class CheckedSampling:
    """``params`` goes to the engine; ``stop_strings`` are matched on text by the router and never sent to it."""

    params: SamplingParams
    stop_strings: tuple[str, ...]


def check_sampling(
    sampling: TextSampling, prompt_ids: tuple[int, ...], engine: EngineInfo, default_max_tokens: int
) -> CheckedSampling:
    """Turn text-level sampling into an engine's.

    Defaults: ``max_tokens`` is the rest of the context, at most ``default_max_tokens``; a larger one than fits is cut to what fits.
    ``temperature`` is 0 (greedy) unless top_k, top_p or min_p ask for sampling, then 1 as in TensorRT-LLM. ``ignore_eos`` sends no
    end token. ``min_tokens`` delays the end token only; stop strings end an answer whenever they appear.

    Raises: InvalidRequest naming the tensor, ContextLengthExceeded for a prompt that leaves no room.
    """
    _check_prompt(prompt_ids, engine)
    room = engine.max_seq_len - len(prompt_ids)
    max_tokens = min(default_max_tokens, room) if sampling.max_tokens is None else sampling.max_tokens
    min_tokens = _or(sampling.min_tokens, 0)
    if min_tokens > max_tokens >= 1:
        raise InvalidRequest("min_tokens", min_tokens, f"give at most max_tokens, which is {max_tokens}")
    if sampling.top_logprobs and not sampling.return_log_probs:
        raise InvalidRequest("top_logprobs", sampling.top_logprobs, "set return_log_probs to true as well")
    params = SamplingParams(
        max_tokens=min(max_tokens, room),
        min_tokens=min(min_tokens, room),
        temperature=_or(sampling.temperature, 1.0 if _asks_for_sampling(sampling) else 0.0),
        top_k=_or(sampling.top_k, 0),
        top_p=_or(sampling.top_p, 1.0),
        min_p=_or(sampling.min_p, 0.0),
        seed=sampling.seed,
        repetition_penalty=_or(sampling.repetition_penalty, 1.0),
        presence_penalty=_or(sampling.presence_penalty, 0.0),
        frequency_penalty=_or(sampling.frequency_penalty, 0.0),
        logit_bias=_logit_bias(sampling, engine.tokenizer),
        end_id=_end_id(sampling, engine.tokenizer),
        bad_words=_bad_words(sampling.bad_words, engine.tokenizer),
        num_return_sequences=_or(sampling.num_return_sequences, 1),
        return_log_probs=sampling.return_log_probs,
        top_logprobs=_or(sampling.top_logprobs, 0),
    )
    return CheckedSampling(params, check_stop_strings(sampling.stop_words))


def _or(value: _N | None, default: _N) -> _N:
    return default if value is None else value


def _check_prompt(prompt_ids: tuple[int, ...], engine: EngineInfo) -> None:
    if not prompt_ids:
        raise InvalidRequest("input_ids", "[]", "give at least one token")
    vocab_size = engine.tokenizer.vocab_size
    if min(prompt_ids) < 0 or max(prompt_ids) >= vocab_size:
        faulty = next(token_id for token_id in prompt_ids if not 0 <= token_id < vocab_size)
        raise InvalidRequest("input_ids", faulty, f"use ids from 0 to {vocab_size - 1}")
    if len(prompt_ids) >= engine.max_seq_len:
        raise ContextLengthExceeded("input_ids", len(prompt_ids), engine.max_seq_len)


def _asks_for_sampling(sampling: TextSampling) -> bool:
    return (
        (sampling.top_k is not None and sampling.top_k > 1)
        or (sampling.top_p is not None and sampling.top_p < 1.0)
        or bool(sampling.min_p)
    )


def _logit_bias(sampling: TextSampling, tokenizer: Tokenizer) -> tuple[tuple[int, float], ...]:
    ids, values = sampling.logit_bias_ids, sampling.logit_bias_values
    if len(ids) != len(values):
        raise InvalidRequest("logit_bias_values", f"{len(values)} values", f"give one for each of the {len(ids)} logit_bias_ids")
    if len(set(ids)) != len(ids):
        raise InvalidRequest("logit_bias_ids", ids, "give each id once")
    for token_id, bias in zip(ids, values, strict=True):
        if not 0 <= token_id < tokenizer.vocab_size:
            raise InvalidRequest("logit_bias_ids", token_id, f"use ids from 0 to {tokenizer.vocab_size - 1}")
        if not (math.isfinite(bias) and abs(bias) <= MAX_LOGIT_BIAS):
            raise InvalidRequest("logit_bias_values", bias, f"give numbers from -{MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g}")
    return tuple(zip(ids, values, strict=True))


def _end_id(sampling: TextSampling, tokenizer: Tokenizer) -> int | None:
    """None means: nothing ends the answer but its length. -1 says so explicitly, as in TensorRT-LLM."""
    end_id = sampling.end_id
    if end_id is None:
        return None if sampling.ignore_eos else tokenizer.eos_id
    if not -1 <= end_id < tokenizer.vocab_size:
        raise InvalidRequest("end_id", end_id, f"use an id from 0 to {tokenizer.vocab_size - 1}, or -1 for none")
    if sampling.ignore_eos and end_id >= 0:
        raise InvalidRequest("end_id", end_id, "leave it out together with ignore_eos")
    return None if end_id < 0 else end_id


def _bad_words(words: tuple[str, ...], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each word as it is tokenized at the start of a text and after a blank, since those are different tokens."""
    if len(words) > _MAX_BAD_WORDS:
        raise InvalidRequest("bad_words", f"{len(words)} words", f"give at most {_MAX_BAD_WORDS}")
    forms: dict[tuple[int, ...], None] = {}
    for word in words:
        if not word:
            raise InvalidRequest("bad_words", '""', "leave empty words out")
        for form in (word, f" {word}"):
            forms[tokenizer.encode(form, add_special_tokens=False, field="bad_words")] = None
    return tuple(forms)
