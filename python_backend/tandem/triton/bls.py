"""The router's way to the engines: BLS calls by the ``tensorrt_llm`` contract, in the caller's thread.

Triton 2.51 neither hands a cancel on to a BLS child nor lets one cancel it, so a child is stopped by a ``stop`` request under its
id.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import triton_python_backend_utils as pb_utils

from tandem.errors import EngineFailure
from tandem.triton.errors_table import from_child
from tandem.triton.responses import read_outputs
from tandem.triton.tensors import Array, int32, texts, word_list
from tandem.types import EngineRequest, SamplingParams, SequenceDelta, TokenLogProbs

_log = logging.getLogger(__name__)


class BlsEnginePort:
    """Implements :class:`tandem.orchestration.port.EnginePort`. Thread-safe: it holds nothing but sizes."""

    def __init__(self, vocab_size: int, tokens_per_block: int) -> None:
        self._vocab_size = vocab_size
        self._tokens_per_block = tokens_per_block

    def generate(self, engine: str, request: EngineRequest, *, streaming: bool) -> Iterator[SequenceDelta]:
        sampling = request.sampling
        call = pb_utils.InferenceRequest(
            model_name=engine,
            request_id=request.request_id,
            inputs=_as_tensors(encode_request(request, self._vocab_size, streaming=streaming)),
            requested_output_names=_output_names(sampling),
        )
        decoder = DeltaDecoder(request, self._tokens_per_block, streaming=streaming)
        for response in call.exec(decoupled=True):
            if response.has_error():
                raise from_child(engine, response.error())
            tensors = read_outputs(response)
            if tensors:  # an engine may give the final flag in a response of its own
                yield decoder.decode(tensors)

    def stop(self, engine: str, request_id: str) -> None:
        inputs = {"stop": np.ones((1, 1), np.bool_), "input_lengths": int32(0, 1, 1), "request_output_len": int32(0, 1, 1)}
        call = pb_utils.InferenceRequest(
            model_name=engine,
            request_id=request_id,
            inputs=_as_tensors(inputs),
            requested_output_names=["output_ids", "sequence_length"],
        )
        try:
            for response in call.exec(decoupled=True):
                if response.has_error():
                    _log.warning("the engine %s refused to stop %s: %s", engine, request_id, response.error().message())
        except pb_utils.TritonModelException as error:
            _log.warning("the engine %s could not be told to stop %s: %s", engine, request_id, error)


class DeltaDecoder:
    """Turns the responses to one engine request into deltas and knows which one is the last.

    The contract has no "last" mark that BLS shows. A sequence has ended when it has all its tokens, when a streamed response brings
    none (end token, cancel) and always when not streaming.
    """

    def __init__(self, request: EngineRequest, tokens_per_block: int, *, streaming: bool) -> None:
        self._request = request
        self._tokens_per_block = tokens_per_block
        self._streaming = streaming
        self._num_tokens = [0] * request.sampling.num_return_sequences
        self._has_ended = [False] * request.sampling.num_return_sequences

    def decode(self, tensors: dict[str, Array]) -> SequenceDelta:
        """Raises: EngineFailure when the response does not keep to the contract."""
        sampling = self._request.sampling
        try:
            index = int(tensors["sequence_index"].item()) if "sequence_index" in tensors else 0
            num_new = int(tensors["sequence_length"].item())
            token_ids = tuple(tensors["output_ids"].reshape(-1)[:num_new].tolist())
            self._num_tokens[index] += num_new
            self._has_ended[index] |= not self._streaming or num_new == 0 or self._num_tokens[index] >= sampling.max_tokens
            log_probs = _last(tensors["output_log_probs"], num_new) if sampling.return_log_probs else ()
            return SequenceDelta(
                self._request.request_id,
                index,
                token_ids,
                log_probs=log_probs,
                top=_top(tensors) if sampling.top_logprobs else (),
                cum_log_prob=float(tensors["cum_log_probs"].item()) if sampling.return_log_probs else 0.0,
                is_last=all(self._has_ended),
                num_cached_tokens=int(tensors["kv_cache_reused_blocks"].item()) * self._tokens_per_block,
            )
        except (KeyError, IndexError, ValueError) as error:
            raise EngineFailure(f"the engine's answer does not keep to the tensor contract ({error}); check its version") from error


def encode_request(request: EngineRequest, vocab_size: int, *, streaming: bool) -> dict[str, Array]:
    """The input tensors of one engine request, a batch of one row."""
    sampling, num_prompt_tokens = request.sampling, len(request.prompt_ids)
    tensors: dict[str, Array] = {
        "input_ids": np.array([request.prompt_ids], np.int32),
        "input_lengths": int32(num_prompt_tokens, 1, 1),
        "request_output_len": int32(sampling.max_tokens, 1, 1),
        "streaming": np.full((1, 1), streaming),
        "exclude_input_in_output": np.ones((1, 1), np.bool_),
        "return_perf_metrics": np.ones((1, 1), np.bool_),
        # Always given: without it TensorRT-LLM states the longest possible sequence_length. -1 is no token.
        "end_id": int32(-1 if sampling.end_id is None else sampling.end_id, 1, 1),
        **_choice_tensors(sampling),
    }
    if request.cache.salt:
        tensors["cache_salt"] = texts((request.cache.salt,))
    if request.guide is not None:
        tensors["guided_decoding_guide_type"] = texts((request.guide.type.value,))
        tensors["guided_decoding_guide"] = texts((request.guide.text,))
    if sampling.stop_words:
        tensors["stop_words_list"] = word_list(sampling.stop_words)
    if sampling.bad_words:
        tensors["bad_words_list"] = word_list(sampling.bad_words)
    if sampling.num_return_sequences > 1:
        tensors["num_return_sequences"] = int32(sampling.num_return_sequences, 1, 1)
    if sampling.return_log_probs:
        tensors["return_log_probs"] = np.ones((1, 1), np.bool_)
    if sampling.top_logprobs:
        tensors["top_logprobs"] = int32(sampling.top_logprobs, 1, 1)
    if sampling.logit_bias:
        bias = np.zeros((1, vocab_size), np.float32)
        for token, value in sampling.logit_bias:
            bias[0, token] = value
        tensors["embedding_bias"] = bias
    return tensors


def _choice_tensors(sampling: SamplingParams) -> dict[str, Array]:
    """How a token is chosen. The contract reads "neither top_k nor top_p" as greedy, so sampling always states a top_p."""
    tensors: dict[str, Array] = {}
    floats = {
        "repetition_penalty": (sampling.repetition_penalty, 1.0),
        "presence_penalty": (sampling.presence_penalty, 0.0),
        "frequency_penalty": (sampling.frequency_penalty, 0.0),
    }
    if not sampling.is_greedy:
        tensors["temperature"] = np.full((1, 1), sampling.temperature, np.float32)
        tensors["runtime_top_p"] = np.full((1, 1), sampling.top_p, np.float32)
        floats["min_p"] = (sampling.min_p, 0.0)
        if sampling.top_k:
            tensors["runtime_top_k"] = int32(sampling.top_k, 1, 1)
        if sampling.seed is not None:
            tensors["seed"] = np.full((1, 1), sampling.seed, np.uint64)
    for name, (value, neutral) in floats.items():
        if value != neutral:
            tensors[name] = np.full((1, 1), value, np.float32)
    if sampling.min_tokens:
        tensors["min_tokens"] = int32(sampling.min_tokens, 1, 1)
    return tensors


def _output_names(sampling: SamplingParams) -> list[str]:
    names = ["output_ids", "sequence_length", "kv_cache_reused_blocks"]
    if sampling.num_return_sequences > 1:
        names.append("sequence_index")
    if sampling.return_log_probs:
        names += ["cum_log_probs", "output_log_probs"]
    if sampling.top_logprobs:
        names += ["output_top_ids", "output_top_log_probs"]
    return names


def _as_tensors(tensors: dict[str, Array]) -> list[pb_utils.Tensor]:
    return [pb_utils.Tensor(name, array) for name, array in tensors.items()]


def _last(log_probs: Array, num_new: int) -> tuple[float, ...]:
    """The contract's list is cumulative; the new tokens' are its end."""
    values = log_probs.reshape(-1)
    return tuple(values[values.size - num_new :].tolist())


def _top(tensors: dict[str, Array]) -> tuple[TokenLogProbs, ...]:
    """One per new token; ids of -1 fill a row that has fewer alternatives."""
    rows = zip(tensors["output_top_ids"][0].tolist(), tensors["output_top_log_probs"][0].tolist(), strict=True)
    tops = []
    for ids, log_probs in rows:
        width = sum(1 for token in ids if token >= 0)
        tops.append(TokenLogProbs(tuple(ids[:width]), tuple(log_probs[:width])))
    return tuple(tops)
