"""The prefix cache through the tensors: salt, reused blocks, and the count that the router hands on."""

import numpy as np
import pytest

from tests.adapter.test_engine_model import ask, engine_model, flag, i32, ids, reference, request
from tests.adapter.test_router_model import children, router_model, router_request
from tests.factories import make_decoder, make_prompt

PROMPT = make_prompt(3, 13)  # three whole blocks of 4 and one token


def salt(text):
    return np.array([[text.encode()]], object)


def reused(sent):
    outputs = sent.outputs
    total, new = outputs["kv_cache_alloc_total_blocks"].item(), outputs["kv_cache_alloc_new_blocks"].item()
    assert total - new == outputs["kv_cache_reused_blocks"].item()
    return total - new


def test_reused_blocks_when_prompt_is_sent_again_then_reported_and_same_answer():
    with engine_model() as model:
        for expected in (0, 3, 3):
            (sent,) = ask(model, request(PROMPT, id="", return_perf_metrics=flag()))
            assert ids(sent) == reference(6, PROMPT)
            assert reused(sent) == expected
        stats = model._engine.stats()
    assert (stats.num_prompt_tokens, stats.num_cached_tokens, stats.num_reused_blocks) == (39, 24, 6)


def test_reused_blocks_when_reuse_is_off_then_none():
    with engine_model(enable_kv_cache_reuse=False) as model:
        found = [reused(ask(model, request(PROMPT, id="", return_perf_metrics=flag()))[0]) for _ in range(2)]
    assert found == [0, 0]


def test_reused_blocks_when_salts_differ_then_each_reuses_its_own():
    """BC-19 (b) at the engine."""
    with engine_model() as model:
        found = [
            reused(ask(model, request(PROMPT, id="", return_perf_metrics=flag(), cache_salt=salt(name)))[0])
            for name in ("a", "b", "a", "b")
        ]
    assert found == [0, 0, 3, 3]


@pytest.mark.parametrize("priority", [0, 100])
def test_retention_when_given_then_decides_what_survives(priority):
    """A pool of 6 blocks: after a second prompt of 4 blocks only what was worth more is left of the first."""
    tensors = {
        "retention_token_range_starts": i32(0).reshape(1, 1),
        "retention_token_range_ends": i32(-1).reshape(1, 1),
        "retention_token_range_priorities": i32(priority).reshape(1, 1),
    }
    with engine_model(make_decoder(num_blocks=10)) as model:
        ask(model, request(PROMPT, 3, id="", **tensors))
        for number in range(3):
            ask(model, request(make_prompt(50 + number, 13), 3, id=""))
        (sent,) = ask(model, request(PROMPT, 3, id="", return_perf_metrics=flag()))
    assert reused(sent) == (3 if priority == 100 else 0)


def test_router_when_prompt_is_cached_then_counts_tokens_and_passes_the_salt_on():
    with children(), router_model() as model:
        found = []
        for number, name in enumerate(("a", "b", "a")):
            asked = router_request(PROMPT, id=f"r{number}", cache_salt=salt(name))
            model.execute([asked])
            found.append(asked.wait()[0].outputs["num_cached_tokens"].item())
    assert found == [0, 0, 12]
