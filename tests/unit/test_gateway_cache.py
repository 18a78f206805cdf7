"""Whose cached prompts a request may use: the salt follows the authenticated key; a field of the body only divides it further."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem_client.text import TextRequest
from tandem_gateway.keys import cache_salt, hash_api_key, tenant_of
from tests.unit.gateway_fakes import CHAT, FakeBackend, RunningGateway, chunk, running_gateway, wait_until

KEY_A, KEY_B = "sk-aaaaaaaaaaaaaaaa", "sk-bbbbbbbbbbbbbbbb"


def ask(gateway: RunningGateway, key: str | None, **fields: object) -> str:
    """The salt that reached the engines."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    response = gateway.http.post("/v1/chat/completions", json={**CHAT, **fields}, headers=headers)
    assert response.status_code == 200
    salt = gateway.backend.requests[-1].cache_salt
    assert salt is not None
    return salt


def test_salt_when_keys_are_set_then_one_per_key_that_does_not_tell_it() -> None:
    with running_gateway(FakeBackend(), api_keys=(hash_api_key(KEY_A), hash_api_key(KEY_B))) as gateway:
        a, b, again = ask(gateway, KEY_A), ask(gateway, KEY_B), ask(gateway, KEY_A)
    assert a == again != b
    assert "/" not in a
    assert KEY_A not in a
    assert hash_api_key(KEY_A)[:32] not in a


def test_salt_when_the_body_gives_one_then_it_only_narrows() -> None:
    with running_gateway(FakeBackend(), api_keys=(hash_api_key(KEY_A), hash_api_key(KEY_B))) as gateway:
        tenant_a, tenant_b = ask(gateway, KEY_A), ask(gateway, KEY_B)
        for wanted in ("x", tenant_b, f"{tenant_b}/", f"/{tenant_b}", "anonymous"):
            a, b = ask(gateway, KEY_A, cache_salt=wanted), ask(gateway, KEY_B, cache_salt=wanted)
            assert a.startswith(tenant_a + "/")
            assert b.startswith(tenant_b + "/")
            assert a.count("/") == 1
        assert ask(gateway, KEY_A, cache_salt="x") != ask(gateway, KEY_A, cache_salt="y")


def test_salt_when_no_keys_are_set_then_one_for_all_whatever_is_sent() -> None:
    with running_gateway(FakeBackend()) as gateway:
        assert ask(gateway, None) == ask(gateway, KEY_A) == tenant_of(None) == "anonymous"
        assert ask(gateway, None, cache_salt="x") == cache_salt("anonymous", "x")


@pytest.mark.parametrize("wrong", ["", 5, "x" * 513])
def test_salt_when_malformed_then_refused(wrong: object) -> None:
    with running_gateway(FakeBackend()) as gateway:
        response = gateway.chat(cache_salt=wrong)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "cache_salt")
        assert gateway.backend.requests == []


def test_cached_tokens_when_the_engine_reports_them_then_in_usage_and_metrics() -> None:
    async def script(request: TextRequest):  # type: ignore[no-untyped-def]
        for row in range(request.num_rows):
            yield replace(chunk("Hello", "stop", cached=4), batch_index=row)

    with running_gateway(FakeBackend(script=script)) as gateway:
        assert gateway.chat().json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
        assert gateway.complete(prompt=["a", "b"]).json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 8}
        wait_until(lambda: gateway.metric('tandem_gateway_cached_prompt_tokens_total{model_name="tandem-fast"}') == 12)
