"""Between our engine requests and TensorRT-LLM's LLM API: plain values in, plain values out; imports nothing of it.

Fields of ``SamplingParams`` and ``RequestOutput`` as documented for TensorRT-LLM 1.2. What the API could only approximate is
refused by name. Three of its habits are met here:

* ``logprobs=0`` reads as "none", so at least one is asked for;
* without top_k and top_p it decodes greedily, so sampling always states a top_p, and greedy decoding top_k 1;
* the end token may stand at the end of ``token_ids``; in our contract it is never part of the output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tandem.errors import Unsupported
from tandem.types import EngineRequest, FinishReason, Guide, GuideType, SamplingParams, SequenceDelta, TokenLogProbs

_FINISH = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "cancelled": FinishReason.CANCELLED,
    "timeout": FinishReason.ERROR,
}
_GUIDE_FIELDS = {
    GuideType.JSON_SCHEMA: "json",
    GuideType.REGEX: "regex",
    GuideType.EBNF_GRAMMAR: "grammar",
    GuideType.STRUCTURAL_TAG: "structural_tag",
}


def sampling_arguments(sampling: SamplingParams) -> dict[str, Any]:
    """Keyword arguments of ``SamplingParams``; guide and dense logit bias are left to the caller. Raises: Unsupported."""
    if sampling.num_return_sequences > 1 and sampling.is_greedy:
        remedy = "greedy decoding would give equal samples; set top_p"
        raise Unsupported("num_return_sequences", sampling.num_return_sequences, remedy)
    arguments: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "end_id": -1 if sampling.end_id is None else sampling.end_id,
        "ignore_eos": sampling.end_id is None,
        "n": sampling.num_return_sequences,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "bad_token_ids": _single_tokens("bad_words_list", sampling.bad_words),
        "stop_token_ids": _single_tokens("stop_words_list", sampling.stop_words),
        "include_stop_str_in_output": True,  # in the contract a stop word is part of the output
        "detokenize": False,
        "return_perf_metrics": True,
        **_choice(sampling),
    }
    if sampling.min_tokens:
        arguments["min_tokens"] = sampling.min_tokens
    if sampling.return_log_probs:
        arguments["logprobs"] = max(sampling.top_logprobs, 1)
    return {key: value for key, value in arguments.items() if value is not None}


def guide_arguments(guide: Guide) -> dict[str, Any]:
    """Keyword arguments of ``GuidedDecodingParams``. Raises: Unsupported for a type that the router turns into another."""
    if guide.type is GuideType.JSON:
        return {"json_object": True}
    if guide.type not in _GUIDE_FIELDS:
        raise Unsupported("guided_decoding_guide_type", guide.type.value, f"use {', '.join(each.value for each in _GUIDE_FIELDS)}")
    return {_GUIDE_FIELDS[guide.type]: guide.text}


def _choice(sampling: SamplingParams) -> dict[str, Any]:
    if sampling.is_greedy:
        return {"top_k": 1}
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or None,
        "min_p": sampling.min_p or None,
        "seed": sampling.seed,
    }


def _single_tokens(name: str, words: Sequence[Sequence[int]]) -> list[int] | None:
    for word in words:
        if len(word) != 1:
            raise Unsupported(name, f"a word of {len(word)} tokens", "the LLM API takes words of one token; leave it out")
    return [word[0] for word in words] or None


class OutputReader:
    """Turns the growing outputs of one request into deltas. Owned by the loop's thread.

    The API hands out the same object again and again, with all tokens so far; what was read already is remembered per sequence.
    """

    def __init__(self, request: EngineRequest, tokens_per_block: int) -> None:
        self._request = request
        self._tokens_per_block = tokens_per_block
        sequences = range(request.sampling.num_return_sequences)
        self._num_read = [0 for _ in sequences]
        self._cum_log_prob = [0.0 for _ in sequences]
        self._has_ended = [False for _ in sequences]

    def read(self, outputs: Sequence[Any], *, is_finished: bool) -> list[SequenceDelta]:
        """The new deltas of all sequences. The last one of the request is marked when ``is_finished``."""
        num_cached_tokens = self._cached_tokens(outputs)
        deltas: list[SequenceDelta] = []
        for output in outputs:
            deltas += self._read_one(output, num_cached_tokens, is_finished=is_finished)
        return deltas

    @property
    def has_ended(self) -> bool:
        return all(self._has_ended)

    def _read_one(self, output: Any, num_cached_tokens: int, *, is_finished: bool) -> list[SequenceDelta]:
        index = output.index
        if self._has_ended[index]:
            return []
        start = self._num_read[index]
        token_ids = list(output.token_ids[start:])
        is_at_end = self._request.sampling.end_id in token_ids
        if is_at_end:
            token_ids = token_ids[: token_ids.index(self._request.sampling.end_id)]
        reason = self._reason(output, is_at_end=is_at_end, is_finished=is_finished)
        log_probs, top = self._log_probs(output, start, len(token_ids))
        self._num_read[index] += len(token_ids)
        self._cum_log_prob[index] += sum(log_probs)
        self._has_ended[index] = reason is not None
        parts = []
        # An end by anything but length is a delta of its own, without tokens: that is how the contract tells it.
        if token_ids:
            in_one = reason if reason is FinishReason.LENGTH else None
            parts.append(self._delta(index, tuple(token_ids), log_probs, top, in_one, num_cached_tokens))
        if reason is not None and not (token_ids and reason is FinishReason.LENGTH):
            parts.append(self._delta(index, (), (), (), reason, num_cached_tokens))
        return parts

    def _reason(self, output: Any, *, is_at_end: bool, is_finished: bool) -> FinishReason | None:
        if output.finish_reason is not None:
            return _FINISH.get(output.finish_reason, FinishReason.ERROR)
        if is_at_end:
            return FinishReason.STOP
        return FinishReason.CANCELLED if is_finished else None

    def _delta(
        self,
        index: int,
        token_ids: tuple[int, ...],
        log_probs: tuple[float, ...],
        top: tuple[TokenLogProbs, ...],
        reason: FinishReason | None,
        num_cached_tokens: int,
    ) -> SequenceDelta:
        return SequenceDelta(
            self._request.request_id,
            index,
            token_ids,
            log_probs=log_probs,
            top=top,
            cum_log_prob=self._cum_log_prob[index],
            finish_reason=reason,
            is_last=reason is not None and self.has_ended,
            num_cached_tokens=num_cached_tokens,
        )

    def _log_probs(self, output: Any, start: int, count: int) -> tuple[tuple[float, ...], tuple[TokenLogProbs, ...]]:
        """Of ``count`` tokens from ``start`` on. Each position is a mapping token id -> Logprob with the chosen token in it."""
        sampling = self._request.sampling
        if not sampling.return_log_probs:
            return (), ()
        positions: Sequence[Mapping[int, Any]] = output.logprobs[start : start + count]
        chosen = tuple(
            _value(position[token]) for token, position in zip(output.token_ids[start : start + count], positions, strict=True)
        )
        if not sampling.top_logprobs:
            return chosen, ()
        return chosen, tuple(_best(position, sampling.top_logprobs) for position in positions)

    def _cached_tokens(self, outputs: Sequence[Any]) -> int:
        """From the metrics of the request; 0 until the runtime has told them."""
        for output in outputs:
            metrics = getattr(output, "request_perf_metrics", None)
            blocks = getattr(getattr(metrics, "kv_cache_metrics", None), "num_reused_blocks", None)
            if blocks is not None:
                return min(int(blocks) * self._tokens_per_block, len(self._request.prompt_ids) - 1)
        return 0


def _best(position: Mapping[int, Any], width: int) -> TokenLogProbs:
    ranked = sorted(position, key=lambda token: -_value(position[token]))[:width]
    return TokenLogProbs(tuple(ranked), tuple(_value(position[token]) for token in ranked))


def _value(entry: Any) -> float:
    return float(getattr(entry, "logprob", entry))
