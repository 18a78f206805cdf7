"""Everything about a request that can be wrong, found before it enters the engine."""

from __future__ import annotations

from dataclasses import replace

from tandem.engine.config import EngineConfig
from tandem.engine.processors import MAX_ABS_LOGIT
from tandem.errors import ContextLengthExceeded, InvalidRequest
from tandem.models.decoder import DecoderInfo
from tandem.types import EngineRequest, SamplingParams


class AdmissionRules:
    """The fixed limits of one engine. Immutable, so any thread may ask."""

    def __init__(self, info: DecoderInfo, config: EngineConfig) -> None:
        self._vocab_size = info.vocab_size
        self._max_num_seqs = config.max_num_seqs
        self.max_seq_len = min(info.max_seq_len, config.max_seq_len or info.max_seq_len)
        self._num_kv_tokens = info.num_blocks * info.block_size

    def resolve(self, request: EngineRequest) -> SamplingParams:
        """The request's parameters as the engine runs them: max_tokens clamped to the context, end_id -1 read as None.

        Raises: InvalidRequest naming field, value and remedy; ContextLengthExceeded when the prompt fills the context.
        """
        params = request.sampling
        if not request.request_id:
            raise InvalidRequest("request_id", "", "give an id that is not empty")
        num_prompt_tokens = len(request.prompt_ids)
        if num_prompt_tokens == 0:
            raise InvalidRequest("prompt_ids", "no tokens", "give at least one prompt token")
        if num_prompt_tokens >= self.max_seq_len:
            raise ContextLengthExceeded("prompt_ids", num_prompt_tokens, self.max_seq_len)
        self._check_ids("prompt_ids", request.prompt_ids)
        self._check_params(params)
        max_tokens = min(params.max_tokens, self.max_seq_len - num_prompt_tokens)
        # The last token of a completion is never computed, so it needs no slot.
        if num_prompt_tokens + max_tokens - 1 > self._num_kv_tokens:
            raise InvalidRequest(
                "max_tokens",
                f"{max_tokens} after a prompt of {num_prompt_tokens}",
                f"the KV memory of this engine holds {self._num_kv_tokens} tokens; lower max_tokens or shorten the prompt",
            )
        return replace(params, max_tokens=max_tokens, end_id=None if params.end_id == -1 else params.end_id)

    def _check_params(self, params: SamplingParams) -> None:
        if params.num_return_sequences > self._max_num_seqs:
            raise InvalidRequest(
                "num_return_sequences",
                params.num_return_sequences,
                f"this engine runs at most {self._max_num_seqs} sequences at once",
            )
        if params.end_id is not None and params.end_id != -1:
            self._check_ids("end_id", (params.end_id,))
        for name, words in (("stop_words", params.stop_words), ("bad_words", params.bad_words)):
            for word in words:
                self._check_ids(name, word)
        self._check_ids("logit_bias", tuple(token for token, _ in params.logit_bias))
        for token, bias in params.logit_bias:
            if abs(bias) > MAX_ABS_LOGIT:
                raise InvalidRequest("logit_bias", f"{token}: {bias}", f"use numbers from -{MAX_ABS_LOGIT:g} to {MAX_ABS_LOGIT:g}")

    def _check_ids(self, field: str, ids: tuple[int, ...]) -> None:
        if ids and (min(ids) < 0 or max(ids) >= self._vocab_size):
            wrong = next(token for token in ids if not 0 <= token < self._vocab_size)
            raise InvalidRequest(field, f"token id {wrong}", f"ids of this model are 0 to {self._vocab_size - 1}")
