"""What an engine can do beyond plain decoding. Profiles declare it once, as data; the router refuses what an engine lacks.

The declaration stands in ``build_engines/profiles/*.yaml``. ``render`` makes the tensors of each engine and the router's parameter
``engine_capabilities`` from it, so the two cannot differ. Which kinds of guides an engine takes is a table of its own:
``tandem.guided.capabilities``.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from tandem.errors import Unsupported
from tandem.types import CacheHints, EngineRequest

_SALT_REMEDY = (
    "it reuses KV blocks between all callers; serve it with enable_kv_cache_reuse false, or use an engine that separates blocks "
    "by salt"
)


class Capability(str, Enum):
    """The last five are ours: TensorRT-LLM's Triton backend has no tensors for them."""

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
    ONE_TENANT = "one_tenant"  # KV blocks are shared by all callers, who were declared to be one tenant


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


class TenantGuard:
    """Holds a deployment to its word that it serves one tenant: the first one to come stays the only one until a restart.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tenant: str | None = None

    def admits(self, tenant: str) -> bool:
        with self._lock:
            if self._tenant is None:
                self._tenant = tenant
            return self._tenant == tenant


def fitted(engine: str, has: Capabilities, request: EngineRequest, tenants: TenantGuard) -> EngineRequest:
    """The request as this engine is to get it: a salt that has nothing to separate is left out, nothing else changes.

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
    if not cache.salt or Capability.CACHE_SALT in has:
        return request
    if Capability.NO_KV_SHARING not in has:
        _check_one_tenant(engine, has, cache, tenants)
    return replace(request, cache=replace(cache, salt=""))


def _check_one_tenant(engine: str, has: Capabilities, cache: CacheHints, tenants: TenantGuard) -> None:
    """Raises: Unsupported when blocks would be shared by more than the salt allows."""
    if Capability.ONE_TENANT not in has:
        raise _lacks("cache_salt", "a salt", engine, _SALT_REMEDY)
    if cache.salt != cache.tenant:
        raise _lacks(
            "cache_salt", "a salt within the tenant", engine, "leave it out, or use an engine that separates blocks by salt"
        )
    if not tenants.admits(cache.tenant):
        raise _lacks("cache_salt", "a second tenant", engine, f"it was declared to serve one tenant; {_SALT_REMEDY}")


def _lacks(field: str, value: object, engine: str, remedy: str) -> Unsupported:
    return Unsupported(field, value, f"the engine {engine} cannot do that: {remedy}")
