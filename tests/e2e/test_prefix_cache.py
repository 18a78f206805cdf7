"""The prefix cache through gateway, router and engines (BC-19): block borders, tenants, and the counts that a caller sees."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tandem_gateway.keys import hash_api_key
from tandem_gateway.triton_backend import TritonAddress, TritonBackend
from tests.e2e.conftest import RunningTriton
from tests.unit.gateway_fakes import RunningGateway, running_gateway, wait_until

pytestmark = pytest.mark.e2e

B = 32
KEYS = {"A": f"sk-{secrets.token_hex(8)}", "B": f"sk-{secrets.token_hex(8)}"}


@pytest.fixture(name="gateway")
def _gateway(triton: RunningTriton) -> Iterator[RunningGateway]:
    backend = TritonBackend(TritonAddress(triton.config.grpc_url, triton.config.metrics_url))
    with running_gateway(backend, wait_ready=False, api_keys=tuple(map(hash_api_key, KEYS.values()))) as gateway:
        wait_until(lambda: gateway.http.get("/readyz").status_code == 200, timeout_s=60)
        gateway.http.timeout = httpx.Timeout(60)
        yield gateway


def complete(gateway: RunningGateway, key: str, num_tokens: int, **fields: Any) -> dict[str, Any]:
    """A raw prompt of exactly so many tokens."""
    body = {"model": "tandem-fast", "prompt": "one" + " two" * (num_tokens - 1), "temperature": 0, "max_tokens": 8, **fields}
    response = gateway.http.post("/v1/completions", json=body, headers={"authorization": f"Bearer {KEYS[key]}"})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    assert found["usage"]["prompt_tokens"] == num_tokens
    return found


def cached(answer: dict[str, Any]) -> int:
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


@pytest.mark.parametrize("model", ["tandem-fast", "tandem-slow"])
@pytest.mark.parametrize("num_tokens", [B, 2 * B - 1, 2 * B, 2 * B + 1])
def test_prompt_when_it_ends_on_a_block_border_then_same_answer_three_times(
    gateway: RunningGateway, num_tokens: int, model: str
) -> None:
    salt = secrets.token_hex(8)
    answers = [complete(gateway, "A", num_tokens, model=model, logprobs=1, cache_salt=salt) for _ in range(3)]
    expected = (num_tokens - 1) // B * B
    assert [cached(answer) for answer in answers] == [0, expected, expected]
    texts = {answer["choices"][0]["text"] for answer in answers}
    assert len(texts) == 1
    first, *others = [answer["choices"][0]["logprobs"]["token_logprobs"][0] for answer in answers]
    assert others == pytest.approx([first, first], abs=0.01)


def test_tenants_when_prompt_is_equal_then_each_key_reuses_its_own(gateway: RunningGateway) -> None:
    counts = [cached(complete(gateway, key, 300)) for key in ("A", "B", "A", "B")]
    assert counts == [0, 0, 288, 288]
    # A salt of the body narrows; it does not open the other key's prompts or the key's own unsalted ones.
    assert cached(complete(gateway, "B", 300, cache_salt="x")) == 0


def test_metrics_when_prompts_were_reused_then_engine_counts_them(gateway: RunningGateway) -> None:
    complete(gateway, "A", 100)
    complete(gateway, "A", 100)
    name = 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="reused",model="fast_int4",version="1"}'
    wait_until(lambda: gateway.metric(name) >= 3, timeout_s=5)
