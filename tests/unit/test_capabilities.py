"""A request that an engine cannot serve as asked is refused by name, never weakened."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.capabilities import ALL_CAPABILITIES, Capability, TenantGuard, fitted
from tandem.errors import Unsupported
from tandem.orchestration.config import EngineInfo
from tandem.orchestration.service import RouterService
from tandem.types import CacheHints, EngineRequest, Guide, GuideType, RequestId, Retention, RetentionRange, SamplingParams
from tests.unit.orchestration_fakes import POLICY, TOKENIZER, ScriptedPort, ids_of, make_config, make_request

SALT = CacheHints("tenant/a")


def request(sampling=None, cache=None, guide=None) -> EngineRequest:
    return EngineRequest(RequestId("r"), (1, 2), sampling or SamplingParams(), cache or CacheHints(), guide)


NEEDS = [
    (request(SamplingParams(temperature=1.0, min_p=0.1)), Capability.MIN_P, "min_p"),
    (request(SamplingParams(return_log_probs=True, top_logprobs=2)), Capability.TOP_LOGPROBS, "top_logprobs"),
    (request(guide=Guide(GuideType.REGEX, "a+")), Capability.GUIDED, "guided_decoding_guide_type"),
    (request(cache=CacheHints(decode=Retention(50))), Capability.KV_RETENTION, "retention_token_range_priorities"),
    (request(cache=CacheHints(ranges=(RetentionRange(0, 2, Retention(50)),))), Capability.KV_RETENTION, "retention"),
    (request(cache=SALT), Capability.CACHE_SALT, "cache_salt"),
]


@pytest.mark.parametrize(("asked", "needed", "field"), NEEDS)
def test_request_when_the_engine_has_the_one_thing_then_unchanged_else_refused(asked, needed, field):
    assert fitted("slow", frozenset({needed}), asked, TenantGuard()) == asked
    with pytest.raises(Unsupported, match=field) as caught:
        fitted("slow", ALL_CAPABILITIES - {needed, Capability.NO_KV_SHARING, Capability.ONE_TENANT}, asked, TenantGuard())
    assert "slow" in caught.value.message


def test_request_when_it_needs_nothing_then_any_engine_takes_it():
    assert fitted("slow", frozenset({Capability.TOKEN_IO}), request(), TenantGuard()) == request()


def test_salt_when_blocks_are_never_shared_then_left_out_since_there_is_nothing_to_separate():
    assert fitted("slow", frozenset({Capability.NO_KV_SHARING}), request(cache=SALT), TenantGuard()).cache.salt == ""


def test_salt_when_blocks_are_shared_between_all_callers_then_refused_and_not_dropped():
    """BC-19 on TensorRT-LLM: two tenants must not see each other's cache, and nobody may believe that they are kept apart."""
    with pytest.raises(Unsupported, match="enable_kv_cache_reuse false"):
        fitted("slow", frozenset({Capability.TOKEN_IO}), request(cache=SALT), TenantGuard())


def test_tenant_when_declared_to_be_the_only_one_then_served_and_a_second_one_is_refused():
    has, guard = frozenset({Capability.ONE_TENANT}), TenantGuard()
    assert fitted("slow", has, request(cache=CacheHints("first")), guard).cache.salt == ""
    assert fitted("slow", has, request(cache=CacheHints("first")), guard).cache.salt == ""
    with pytest.raises(Unsupported, match="one tenant"):
        fitted("slow", has, request(cache=CacheHints("second")), guard)
    with pytest.raises(Unsupported, match="within the tenant"):
        fitted("slow", has, request(cache=CacheHints("first/narrower")), guard)


def engines_with(*capabilities: Capability) -> tuple[EngineInfo, ...]:
    return tuple(
        EngineInfo(name, 64, TOKENIZER, capabilities=frozenset(capabilities)) for name in ("fast_int4", "fast_int8", "slow")
    )


@pytest.mark.parametrize(
    ("changes", "sampling", "field"),
    [
        ({"cache_salt": "tenant/a"}, {}, "cache_salt"),
        ({"guide_type": "regex", "guide": "a+"}, {}, "guided_decoding_guide_type"),
        ({}, {"top_logprobs": 3, "return_log_probs": True}, "top_logprobs"),
        ({}, {"min_p": 0.2}, "min_p"),
    ],
)
def test_router_when_the_engine_lacks_it_then_the_request_is_refused_before_any_call(changes, sampling, field):
    port = ScriptedPort([ids_of("the fox")])
    service = RouterService(make_config(engines=engines_with(Capability.TOKEN_IO)), POLICY, port)
    with pytest.raises(Unsupported) as caught:
        service.handle(replace(make_request(**sampling), **changes), lambda chunk: None)
    assert caught.value.field == field
    assert not port.calls
    assert service.num_running == 0


def test_router_when_the_engine_never_shares_blocks_then_no_salt_is_sent():
    port = ScriptedPort([ids_of("the fox")])
    service = RouterService(make_config(engines=engines_with(Capability.NO_KV_SHARING)), POLICY, port)
    service.handle(replace(make_request(), cache_salt="tenant/a"), lambda chunk: None)
    ((_, asked, _),) = port.calls
    assert asked.cache.salt == ""
