"""The prefix cache never changes tokens: on or off, in any order, under preemption, with choices, from running sequences."""

import itertools
from functools import lru_cache

import numpy as np
import pytest

from tandem.types import CacheHints
from tests.factories import assert_is_idle, collect, make_decoder, make_engine, make_prompt, make_request, run_all, run_one
from tests.tiny_model import TinyModel, reference_greedy

BLOCK_SIZE = 4
NUM_TOKENS = 12
SMALLEST_GAP = 1e-4
SAMPLING = {"temperature": 0.9, "top_k": 25, "top_p": 0.9}
SHARED = make_prompt(500, 22)


@lru_cache
def greedy(prompt, num_tokens=NUM_TOKENS):
    tokens, gap = reference_greedy(TinyModel(), prompt, num_tokens)
    assert gap > SMALLEST_GAP
    return tokens


def prompts_with_shared_prefix():
    """Prompts that share 0, 7, 8, 9, ... tokens with each other, some twice."""
    tails = [(length, make_prompt(600 + length, 5)) for length in (0, 7, 8, 9, 16, 17, 22)]
    prompts = [SHARED[:length] + tail for length, tail in tails]
    return [*prompts, SHARED, SHARED[:20], *prompts[2:5]]


@pytest.mark.parametrize("length", [BLOCK_SIZE, 2 * BLOCK_SIZE - 1, 2 * BLOCK_SIZE, 2 * BLOCK_SIZE + 1])
def test_prompt_when_it_ends_on_a_block_border_then_same_answer_three_times(length):
    """BC-19 (a): one token is always left to compute, so there are logits to answer with."""
    engine, prompt = make_engine(), make_prompt(length, length)
    answers = [run_one(engine, make_request(prompt, max_tokens=NUM_TOKENS, return_log_probs=True)) for _ in range(3)]
    for answer in answers:
        assert answer.tokens == greedy(prompt)
        assert answer.log_probs[0] == pytest.approx(answers[0].log_probs[0], abs=1e-9)
    cached = (length - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert [answer.num_cached_tokens for answer in answers] == [0, cached, cached]
    assert cached < length


@pytest.mark.parametrize("order", range(4))
@pytest.mark.parametrize("num_blocks", [12, 16, 40, 120])
def test_tokens_when_prefixes_are_shared_in_any_order_then_equal_reference(order, num_blocks):
    prompts = prompts_with_shared_prefix()
    np.random.default_rng(order).shuffle(prompts)
    requests = [make_request(prompt, max_tokens=NUM_TOKENS) for prompt in prompts]
    engine, answers, pending = make_engine(make_decoder(num_blocks=num_blocks)), {}, list(requests)
    arrivals = itertools.cycle((2, 0, 0, 1))
    while pending or engine.has_work:
        for _ in range(min(next(arrivals), len(pending))):
            engine.add(engine.prepare(pending.pop()))
        collect(engine.step(), answers)
        engine.check_integrity()
    for request in requests:
        assert answers[request.request_id].tokens == greedy(request.prompt_ids)
    assert engine.stats().num_reused_blocks > 0
    assert_is_idle(engine)


@pytest.mark.parametrize("num_blocks", [13, 17, 64])
def test_sampled_tokens_when_cache_is_on_or_off_then_equal(num_blocks):
    """A pool of 13 preempts; what a preempted sequence finds again of its own blocks is part of what must not matter."""
    tokens = {}
    for has_prefix_cache in (False, True):
        engine = make_engine(make_decoder(num_blocks=num_blocks), max_num_seqs=6, has_prefix_cache=has_prefix_cache)
        requests = [
            make_request(prompt, max_tokens=24, seed=i, num_return_sequences=1 + i % 3, **SAMPLING)
            for i, prompt in enumerate(prompts_with_shared_prefix())
        ]
        answers = run_all(engine, requests)
        tokens[has_prefix_cache] = [answers[request.request_id].token_ids for request in requests]
        stats = engine.stats()
        assert (stats.num_reused_blocks > 0) == (stats.num_cached_blocks > 0) == has_prefix_cache
        assert (stats.num_preemptions > 0) == (num_blocks < 64)
    assert tokens[True] == tokens[False]


def test_prefix_when_its_sequence_still_runs_then_shared_with_it():
    engine = make_engine(make_decoder(num_blocks=40))
    first, second = (make_request(SHARED, max_tokens=NUM_TOKENS) for _ in range(2))
    answers = {}
    engine.add(engine.prepare(first))
    while first.request_id not in answers:
        collect(engine.step(), answers)
    engine.add(engine.prepare(second))
    num_used = engine.stats().num_used_blocks
    collect(engine.step(), answers)
    assert engine.stats().num_running == 2
    assert engine.stats().num_used_blocks == num_used + 1  # five of its six blocks are those of the first
    while engine.has_work:
        collect(engine.step(), answers)
    assert answers[second.request_id].num_cached_tokens == 20
    assert answers[first.request_id].tokens == answers[second.request_id].tokens == greedy(SHARED)


def test_conversation_when_it_goes_on_then_answer_of_last_turn_is_cached():
    engine = make_engine()
    first = run_one(engine, make_request(SHARED, max_tokens=NUM_TOKENS))
    longer = (*SHARED, *first.tokens, *make_prompt(9, 3))
    second = run_one(engine, make_request(longer, max_tokens=NUM_TOKENS))
    # The last token of an answer is sampled but never computed: 33 of 34 tokens are in the cache, in 8 full blocks.
    assert second.num_cached_tokens == 32
    assert second.tokens == greedy(longer)


def test_preempted_sequence_when_its_blocks_survive_then_not_computed_again():
    decoder = make_decoder(num_blocks=16)
    engine = make_engine(decoder, max_num_seqs=2)
    requests = [make_request(make_prompt(40 + i, 20), max_tokens=24) for i in range(2)]
    answers = run_all(engine, requests)
    stats = engine.stats()
    assert stats.num_preemptions > 0
    assert stats.num_reused_blocks > 0
    assert stats.num_cached_tokens == 0  # a request's own work is no cache hit of its prompt
    for request in requests:
        assert answers[request.request_id].tokens == greedy(request.prompt_ids, 24)
        assert answers[request.request_id].num_cached_tokens == 0


def test_tenants_when_prompts_are_equal_then_only_own_blocks_are_reused():
    """BC-19 (b)"""
    engine = make_engine(make_decoder(num_blocks=120))
    salts = ("a", "b", "a", "b/narrow", "b/narrow", "")
    answers = [run_one(engine, make_request(SHARED, max_tokens=4, cache=CacheHints(salt=salt))) for salt in salts]
    assert [answer.num_cached_tokens for answer in answers] == [0, 0, 20, 0, 20, 0]
    assert all(answer.tokens == greedy(SHARED, 4) for answer in answers)


def test_forward_when_it_fails_then_its_blocks_are_not_found():
    decoder = make_decoder()
    engine = make_engine(decoder, max_num_batched_tokens=8)
    request = make_request(SHARED, max_tokens=4)
    engine.add(engine.prepare(request))
    engine.step()  # tokens 0 to 7
    forward, decoder.forward = decoder.forward, lambda batch: (_ for _ in ()).throw(RuntimeError("kernel broke"))
    engine.step()
    decoder.forward = forward
    answer = run_one(engine, make_request(SHARED, max_tokens=4))
    assert answer.num_cached_tokens == 8
    assert answer.tokens == greedy(SHARED, 4)
