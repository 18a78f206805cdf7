"""What an engine can do beyond plain decoding. Profiles declare it once, as data; the router refuses what an engine lacks.

The declaration stands in ``build_engines/profiles/*.yaml``. ``render`` makes the tensors of each engine and the router's parameter
``engine_capabilities`` from it, so the two cannot differ. Which kinds of guides an engine takes is a table of its own:
``tandem.guided.capabilities``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from tandem.errors import Unsupported
from tandem.types import EngineRequest

_SALT_REMEDY = (
    "it reuses KV blocks between all callers; serve it with enable_kv_cache_reuse false, or use an engine that separates blocks "
    "by salt"
)


class Capability(str, Enum):
    """The last four are ours: TensorRT-LLM's Triton backend has no tensors for them."""

    TOKEN_IO = "token_io"  # noqa: S105  (token ids in and out)
    LOGITS = "logits"  # return_generation_logits
    ENTROPY = "entropy"  # output_entropy
    GUIDED = "guided"  # guided_decoding_guide_type and _guide
    DRAFT_TOKENS = "draft_tokens"  # draft_input_ids
    KV_RETENTION = "kv_retention"  # retention_*
    BEAM = "beam"  # beam_width above 1
    MIN_P = "min_p"
    TOP_LOGPROBS = "top_logprobs"
    CACHE_SALT = "cache_salt"  # KV blocks are shared between requests of equal salt only
    NO_KV_SHARING = "no_kv_sharing"  # KV blocks are never shared, so a salt has nothing to separate


Capabilities = frozenset[Capability]
ALL_CAPABILITIES: Capabilities = frozenset(Capability)

EXTENSION_TENSORS: Mapping[str, Capability] = {
    "min_p": Capability.MIN_P,
    "top_logprobs": Capability.TOP_LOGPROBS,
    "output_top_ids": Capability.TOP_LOGPROBS,
    "output_top_log_probs": Capability.TOP_LOGPROBS,
    "cache_salt": Capability.CACHE_SALT,
    "output_entropy": Capability.ENTROPY,
}
"""Tensors of engines that are not in the contract -> the capability that brings them."""


def fitted(engine: str, has: Capabilities, request: EngineRequest) -> EngineRequest:
    """The request as this engine is to get it: a salt is left out where blocks are never shared anyway, nothing else changes.

    Raises: Unsupported naming the field and the engine, when the engine would ignore or misread something.
    """
    sampling, cache = request.sampling, request.cache
    if sampling.min_p > 0.0 and Capability.MIN_P not in has:
        raise _lacks("min_p", sampling.min_p, engine, "use top_p or top_k")
    if sampling.top_logprobs and Capability.TOP_LOGPROBS not in has:
        raise _lacks("top_logprobs", sampling.top_logprobs, engine, "leave it out; the chosen token's log-probability can be had")
    if request.guide is not None and Capability.GUIDED not in has:
        raise _lacks("guided_decoding_guide_type", request.guide.type.value, engine, "leave it out, or ask for another path")
    if (cache.ranges or cache.decode is not None) and Capability.KV_RETENTION not in has:
        raise _lacks("retention_token_range_priorities", "a rule", engine, "leave it out")
    if cache.salt and Capability.CACHE_SALT not in has:
        if Capability.NO_KV_SHARING not in has:
            raise _lacks("cache_salt", "a salt", engine, _SALT_REMEDY)
        return replace(request, cache=replace(cache, salt=""))
    return request


def _lacks(field: str, value: object, engine: str, remedy: str) -> Unsupported:
    return Unsupported(field, value, f"the engine {engine} cannot do that: {remedy}")
