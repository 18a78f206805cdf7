"""A stand-in for the documented interface of TensorRT-LLM's LLM API, as far as the adapter uses it, and as strict where it matters.

``SamplingParams`` takes the documented fields only and refuses greedy decoding with n > 1; ``generate_async`` takes the documented
keyword arguments only and gives an object that is an asynchronous iterator over itself, grows its outputs, and can be aborted. The
"model" counts: the token after x is x + 1, and ``END`` ends an answer.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

END = 50
VOCAB_SIZE = 300


@dataclass(kw_only=True)
class GuidedDecodingParams:
    json: Any = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None


@dataclass(kw_only=True)
class SamplingParams:
    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    bad: Any = None
    bad_token_ids: list[int] | None = None
    stop: Any = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    embedding_bias: Any = None
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_p: float | None = None
    logprobs: int | None = None
    return_perf_metrics: bool = False
    guided_decoding: GuidedDecodingParams | None = None
    ignore_eos: bool = False
    detokenize: bool = True

    def __post_init__(self) -> None:
        is_greedy = self.top_k in (None, 1) and self.top_p in (None, 0.0)
        if self.n > 1 and is_greedy:
            raise ValueError("Greedy decoding in the LLM API does not allow multiple returns")
        if self.end_id is None:
            raise ValueError("tokenizer is required to reset end_id if it is None")


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass
class KvCacheMetrics:
    num_reused_blocks: int = 0


@dataclass
class RequestPerfMetrics:
    kv_cache_metrics: KvCacheMetrics


@dataclass
class CompletionOutput:
    index: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: str | None = None
    request_perf_metrics: RequestPerfMetrics | None = None


class RequestOutput:
    """Awaited in steps; yields itself, as the real one does."""

    def __init__(self, llm: LLM, prompt: list[int], params: SamplingParams) -> None:
        self._llm = llm
        self._prompt = prompt
        self._params = params
        self._is_aborted = False
        self.outputs = [CompletionOutput(index) for index in range(params.n)]

    @property
    def finished(self) -> bool:
        return all(output.finish_reason is not None for output in self.outputs)

    def abort(self) -> None:
        self._is_aborted = True
        self._llm.num_aborted += 1

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        return self

    async def __anext__(self) -> RequestOutput:
        if self.finished:
            raise StopAsyncIteration
        await asyncio.sleep(0)
        while self._llm.is_held and not self._is_aborted:  # noqa: ASYNC110  (set from another thread)
            await asyncio.sleep(0.002)
        if self._llm.failure is not None:
            raise self._llm.failure
        self._step()
        return self

    def _step(self) -> None:
        for output in self.outputs:
            if output.finish_reason is not None:
                continue
            if self._is_aborted:
                output.finish_reason = "cancelled"
                continue
            self._append(output)
            break  # one sequence at a time, so that their deltas interleave

    def _append(self, output: CompletionOutput) -> None:
        params = self._params
        last = output.token_ids[-1] if output.token_ids else self._prompt[-1]
        token = last + 1
        output.token_ids.append(token)
        if params.logprobs:
            output.logprobs.append(
                {token: Logprob(-0.5, 1), **{token + k: Logprob(-1.0 - k, 1 + k) for k in range(1, params.logprobs)}}
            )
        output.request_perf_metrics = RequestPerfMetrics(KvCacheMetrics(self._llm.num_reused_blocks))
        if token == params.end_id and not params.ignore_eos:
            output.finish_reason = "stop"  # the end token stays in token_ids
        elif token in (params.stop_token_ids or ()):
            output.finish_reason = "stop"
        elif len(output.token_ids) >= params.max_tokens:
            output.finish_reason = "length"


@dataclass
class KvCacheConfig:
    enable_block_reuse: bool = True
    max_tokens: int | None = None
    tokens_per_block: int = 32
    dtype: str = "auto"


class LLM:
    def __init__(
        self,
        model: str,
        *,
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        max_batch_size: int = 8,
        max_num_tokens: int = 8192,
        max_seq_len: int | None = None,
        kv_cache_config: KvCacheConfig | None = None,
        enable_chunked_prefill: bool = False,
        guided_decoding_backend: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        assert not trust_remote_code
        self.arguments = {key: value for key, value in locals().items() if key != "self"}
        self.calls: list[tuple[list[int], SamplingParams, dict[str, Any]]] = []
        self.is_held = False  # no request goes on until it is let go or aborted
        self.num_reused_blocks = 0
        self.num_aborted = 0
        self.failure: Exception | None = None
        self.is_shut_down = False

    def generate_async(
        self,
        inputs: list[int],
        sampling_params: SamplingParams | None = None,
        lora_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: Any = None,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        assert streaming
        assert isinstance(inputs, list)
        assert sampling_params is not None
        self.calls.append((inputs, dataclasses.replace(sampling_params), {"cache_salt": cache_salt}))
        return RequestOutput(self, inputs, sampling_params)

    def shutdown(self) -> None:
        self.is_shut_down = True


class OldLLM(LLM):
    """Of a version before ``cache_salt``."""

    def generate_async(
        self, inputs: list[int], sampling_params: SamplingParams | None = None, streaming: bool = False
    ) -> RequestOutput:
        return super().generate_async(inputs, sampling_params, streaming=streaming)
