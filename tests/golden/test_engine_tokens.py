"""Scheduling never changes tokens: the engine against a full recompute of the tiny float64 model, one request at a time."""

import itertools
from functools import lru_cache

import numpy as np
import pytest

from tests.factories import Answer, assert_is_idle, collect, make_decoder, make_engine, make_prompt, make_request, run_all, run_one
from tests.tiny_model import TinyModel, reference_greedy, reference_logits

NUM_TOKENS = 20
PROMPT_LENGTHS = (1, 3, 4, 5, 8, 13, 21, 33)
PROMPTS = tuple(make_prompt(number, length) for number, length in enumerate(PROMPT_LENGTHS))
# Batching moves the logits of this model by less than 1e-12; a tie within this gap could hide a fault or look like one.
SMALLEST_GAP = 1e-4
SAMPLING = {"temperature": 0.9, "top_k": 25, "top_p": 0.9, "min_p": 0.01}


@lru_cache
def greedy(prompt, num_tokens=NUM_TOKENS):
    tokens, gap = reference_greedy(TinyModel(), prompt, num_tokens)
    assert gap > SMALLEST_GAP
    return tokens


@lru_cache
def sampled(prompt, seed, index, num_tokens=NUM_TOKENS):
    """Sampling by its definition: full sorts, one Philox number per position, SAMPLING's temperature, min-p, top-k and top-p."""
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, index], np.uint64)))
    token_ids = list(prompt)
    for uniform in generator.random(num_tokens):
        logits = reference_logits(TinyModel(), token_ids) / SAMPLING["temperature"]
        probs = np.exp(logits - logits.max())
        probs[probs < SAMPLING["min_p"]] = 0.0
        order = np.argsort(-probs, kind="stable")
        probs[order[SAMPLING["top_k"] :]] = 0.0
        probs /= probs.sum()
        nucleus = np.searchsorted(np.cumsum(probs[order]), SAMPLING["top_p"]) + 1
        probs[order[nucleus:]] = 0.0
        cumulative = np.cumsum(probs) / probs.sum()
        assert np.abs(cumulative - uniform).min() > 1e-9  # no token hangs on a rounding error
        token_ids.append(int(np.searchsorted(cumulative, uniform, side="right")))
    return token_ids[len(prompt) :]


def greedy_requests():
    return [make_request(prompt, max_tokens=NUM_TOKENS) for prompt in PROMPTS]


def assert_greedy(answers, requests):
    for request in requests:
        assert answers[request.request_id].tokens == greedy(request.prompt_ids)


@pytest.mark.parametrize("block_size", [1, 3, 4, 16, 96])
@pytest.mark.parametrize("chunk_tokens", [4, 5, 16, 128])
def test_greedy_tokens_when_block_and_chunk_sizes_vary_then_equal_reference(block_size, chunk_tokens):
    decoder = make_decoder(block_size=block_size, num_blocks=4 * -(-96 // block_size))
    requests = greedy_requests()
    assert_greedy(run_all(make_engine(decoder, max_num_batched_tokens=chunk_tokens), requests), requests)


@pytest.mark.parametrize("max_num_seqs", [1, 2, 8])
def test_greedy_tokens_when_batch_size_varies_then_equal_reference(max_num_seqs):
    requests = greedy_requests()
    engine = make_engine(make_decoder(num_blocks=200), max_num_seqs=max_num_seqs)
    assert_greedy(run_all(engine, requests), requests)


@pytest.mark.parametrize("seed", range(4))
def test_greedy_tokens_when_requests_arrive_while_others_run_then_equal_reference(seed):
    rng = np.random.default_rng(seed)
    requests = greedy_requests()
    rng.shuffle(requests)
    engine, answers, pending = make_engine(make_decoder(num_blocks=40)), {}, list(requests)
    while pending or engine.has_work:
        for _ in range(min(len(pending), int(rng.integers(0, 3)))):
            engine.add(engine.prepare(pending.pop()))
        collect(engine.step(), answers)
    assert_greedy(answers, requests)
    assert_is_idle(engine)


@pytest.mark.parametrize("num_blocks", [13, 14, 18, 24])
def test_greedy_tokens_when_pool_is_short_then_preempted_and_equal_reference(num_blocks):
    """BC-20 (d): 13 blocks of 4 hold the longest request (33 + 20 - 1 tokens) and nothing beside it."""
    requests = greedy_requests()
    engine = make_engine(make_decoder(num_blocks=num_blocks), max_num_seqs=8)
    assert_greedy(run_all(engine, requests), requests)
    assert engine.stats().num_preemptions > 0


@pytest.mark.parametrize("num_blocks", [13, 20, 64])
@pytest.mark.parametrize("chunk_tokens", [8, 64])
def test_sampled_tokens_when_pool_and_chunks_vary_then_equal_definition(num_blocks, chunk_tokens):
    requests = [make_request(p, max_tokens=NUM_TOKENS, seed=7 + i, **SAMPLING) for i, p in enumerate(PROMPTS)]
    engine = make_engine(make_decoder(num_blocks=num_blocks), max_num_seqs=6, max_num_batched_tokens=chunk_tokens)
    answers = run_all(engine, requests)
    for request in requests:
        assert answers[request.request_id].tokens == sampled(request.prompt_ids, request.sampling.seed, 0)
    assert (engine.stats().num_preemptions > 0) == (num_blocks < 64)


@pytest.mark.parametrize("prompt_length", range(1, 10))
@pytest.mark.parametrize("num_blocks", [8, 64])
def test_sampled_choices_when_forked_at_any_block_offset_then_each_equals_its_own_run(prompt_length, num_blocks):
    """n = 3 shares the prefill; a partial last block is copied on the first write, a full one never is."""
    prompt = make_prompt(100 + prompt_length, prompt_length)
    decoder = make_decoder(num_blocks=num_blocks)
    engine = make_engine(decoder)
    answer = run_one(engine, make_request(prompt, max_tokens=NUM_TOKENS, seed=3, num_return_sequences=3, **SAMPLING))
    assert answer.token_ids == {index: sampled(prompt, 3, index) for index in range(3)}
    assert len({tuple(tokens) for tokens in answer.token_ids.values()}) == 3
    if num_blocks == 64:
        assert engine.stats().num_context_tokens == prompt_length  # the prompt is computed once
        assert len(decoder.copies) == (0 if prompt_length % 4 == 0 else 2)
    else:
        assert engine.stats().num_preemptions > 0


def test_choices_when_greedy_then_all_equal_reference():
    answer = run_one(make_engine(), make_request(PROMPTS[3], max_tokens=NUM_TOKENS, num_return_sequences=4))
    assert answer.token_ids == dict.fromkeys(range(4), greedy(PROMPTS[3]))


@pytest.mark.parametrize("cancel_at", range(0, 12, 3))
def test_tokens_when_neighbours_are_cancelled_then_unchanged(cancel_at):
    requests = greedy_requests()
    engine, answers = make_engine(make_decoder(num_blocks=24), max_num_seqs=4), {}
    for request in requests:
        engine.add(engine.prepare(request))
    for step in itertools.count():
        if not engine.has_work:
            break
        if step == cancel_at:
            collect(filter(None, [engine.cancel(request.request_id) for request in requests[::2]]), answers)
        collect(engine.step(), answers)
        engine.check_integrity()
    assert_greedy(answers, requests[1::2])
    for request in requests[::2]:
        answer: Answer = answers[request.request_id]
        assert greedy(request.prompt_ids)[: len(answer.token_ids[0])] == answer.token_ids[0]
        assert answer.num_last == 1


def test_tokens_when_greedy_sampled_and_penalised_share_a_batch_then_each_equals_its_lone_run():
    kinds = [{}, dict(seed=1, **SAMPLING), {"repetition_penalty": 1.3, "frequency_penalty": 0.4}, {"seed": 2, "temperature": 1.2}]
    requests = [make_request(p, max_tokens=NUM_TOKENS, **kinds[i % 4]) for i, p in enumerate(PROMPTS)]
    together = run_all(make_engine(make_decoder(num_blocks=30), max_num_seqs=5), requests)
    for request in requests:
        assert together[request.request_id].tokens == run_one(make_engine(), request).tokens


def test_log_probs_when_chunked_batched_and_preempted_then_equal_reference():
    requests = [make_request(p, max_tokens=NUM_TOKENS, return_log_probs=True, top_logprobs=3) for p in PROMPTS]
    answers = run_all(make_engine(make_decoder(num_blocks=14), max_num_seqs=8), requests)
    for request in requests:
        answer = answers[request.request_id]
        log_probs, entropies, top = [], [], []
        token_ids = list(request.prompt_ids)
        for token in answer.tokens:
            logits = reference_logits(TinyModel(), token_ids)
            all_log_probs = logits - np.log(np.exp(logits).sum())
            log_probs.append(all_log_probs[token])
            entropies.append(-(np.exp(all_log_probs) * all_log_probs).sum())
            top.append(tuple(np.argsort(-logits)[:3].tolist()))
            token_ids.append(token)
        np.testing.assert_allclose(answer.log_probs[0], log_probs, atol=1e-9)
        np.testing.assert_allclose(answer.entropies[0], entropies, atol=1e-9)
        assert [alternatives.ids for alternatives in answer.top[0]] == top
        assert answer.cum_log_prob[0] == pytest.approx(sum(log_probs))
