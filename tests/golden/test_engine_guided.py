"""A guide's tokens depend on nothing but prompt, guide and seed: the engine against a full recompute that masks token by token."""

import json
import re
from functools import lru_cache

import jsonschema
import numpy as np
import pytest

from tandem.guided.matcher import TokenMask
from tandem.types import FORCED_ENTROPY, FinishReason
from tests.factories import make_decoder, make_engine, make_prompt, make_request, run_all, run_one
from tests.guided_factories import END, detokenize, make_compiler, regex_guide, schema_guide
from tests.tiny_model import VOCAB_SIZE, TinyModel, reference_greedy, reference_logits

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{3,6}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "age", "ok"],
    "additionalProperties": False,
}
GUIDES = (
    schema_guide(SCHEMA),
    regex_guide("(cat|dog)( (yes|no)){3}"),
    schema_guide({"type": "array", "items": {"enum": ["cat", "dog", "cats"]}, "minItems": 2, "maxItems": 4}),
    regex_guide("[a-z]{2,9}, age: [0-9]+"),
)
NUM_TOKENS = 30
COMPILER = make_compiler()


@lru_cache
def reference(prompt, guide):
    """Greedy over the allowed tokens, one at a time, the end token where the grammar accepts; tokens and how it ended."""
    matcher, mask = COMPILER.compile(guide).matcher(), TokenMask(VOCAB_SIZE)
    ids, out = list(prompt), []
    while len(out) < NUM_TOKENS:
        matcher.fill(mask, END)
        logits = np.where(mask.to_forbidden(), -np.inf, reference_logits(TinyModel(), ids))
        top = np.sort(logits[np.isfinite(logits)])
        assert len(top) == 1 or top[-1] - top[-2] > 1e-6
        token = int(logits.argmax())
        if token == END:
            return out, FinishReason.STOP
        matcher.consume(token)
        ids.append(token)
        out.append(token)
        if matcher.is_complete:
            return out, FinishReason.STOP
    return out, FinishReason.LENGTH


PROMPTS = tuple(make_prompt(number, length) for number, length in enumerate((1, 4, 5, 13, 21)))


def make_requests(**sampling):
    return [
        make_request(prompt, guide=GUIDES[number % len(GUIDES)], max_tokens=NUM_TOKENS, end_id=END, **sampling)
        for number, prompt in enumerate(PROMPTS)
    ]


def assert_as_reference(answers, requests):
    for request in requests:
        tokens, reason = reference(request.prompt_ids, request.guide)
        answer = answers[request.request_id]
        assert (answer.tokens, answer.finish_reason) == (tokens, reason)


@pytest.mark.parametrize("has_jump_forward", [True, False])
@pytest.mark.parametrize(("block_size", "chunk_tokens"), [(1, 4), (3, 5), (4, 16), (16, 7), (96, 128)])
def test_guided_tokens_when_sizes_vary_then_equal_reference(block_size, chunk_tokens, has_jump_forward):
    decoder = make_decoder(block_size=block_size, num_blocks=4 * -(-96 // block_size))
    engine = make_engine(decoder, grammars=COMPILER, max_num_batched_tokens=chunk_tokens, has_jump_forward=has_jump_forward)
    requests = make_requests()
    assert_as_reference(run_all(engine, requests), requests)


@pytest.mark.parametrize("has_prefix_cache", [True, False])
def test_guided_tokens_when_preempted_then_equal_reference(has_prefix_cache):
    engine = make_engine(
        make_decoder(block_size=4, num_blocks=16), grammars=COMPILER, max_num_seqs=5, has_prefix_cache=has_prefix_cache
    )
    requests = make_requests()
    answers = run_all(engine, requests)
    assert engine.stats().num_preemptions > 0
    assert_as_reference(answers, requests)
    again = make_requests()
    assert_as_reference(run_all(engine, again), again)


def test_free_tokens_when_guided_ones_share_the_batch_then_unchanged():
    free = [make_request(prompt, max_tokens=12) for prompt in PROMPTS[:3]]
    guided = make_requests()
    for order in range(4):
        mixed = [*free, *guided]
        rng = np.random.default_rng(order)
        rng.shuffle(mixed)
        answers = run_all(make_engine(make_decoder(num_blocks=96), grammars=COMPILER, max_num_seqs=8), mixed)
        assert_as_reference(answers, guided)
        for request in free:
            assert answers[request.request_id].tokens == reference_greedy(TinyModel(), request.prompt_ids, 12)[0]


def test_guided_samples_when_n_is_3_then_all_hold_and_equal_their_lone_runs():
    sampling = {"temperature": 1.5, "top_p": 1.0, "seed": 5, "num_return_sequences": 3}
    requests = make_requests(**sampling)
    engine = make_engine(make_decoder(num_blocks=128), grammars=COMPILER, max_num_seqs=6)
    answers = run_all(engine, requests)
    for request in requests:
        alone = make_engine(make_decoder(num_blocks=128), grammars=COMPILER, has_jump_forward=False)
        expected = run_one(
            alone, make_request(request.prompt_ids, guide=request.guide, max_tokens=NUM_TOKENS, end_id=END, **sampling)
        )
        assert answers[request.request_id].token_ids == expected.token_ids
        if request.guide is GUIDES[0]:
            for index, ids in expected.token_ids.items():
                if expected.finish_reasons[index] is FinishReason.STOP:
                    jsonschema.validate(json.loads(detokenize(ids)), SCHEMA)


def test_forced_tokens_when_jumped_then_marked_and_fewer_steps():
    guide = regex_guide(r'\{"name": "(cat|dog)", "age": [0-9]\}')
    answers, steps = [], []
    for has_jump_forward in (True, False):
        engine = make_engine(grammars=COMPILER, has_jump_forward=has_jump_forward)
        answers.append(run_one(engine, make_request((5, 6, 7), guide=guide, max_tokens=40, end_id=END)))
        steps.append(engine.stats().num_steps)
        assert engine.stats().num_generated_tokens == len(answers[-1].tokens)
        assert engine.stats().num_context_tokens == 3
    jumped, stepped = answers
    assert jumped.tokens == stepped.tokens
    assert jumped.entropies == stepped.entropies
    assert re.fullmatch(r'\{"name": "(cat|dog)", "age": [0-9]\}', detokenize(jumped.tokens))
    forced = [entropy == FORCED_ENTROPY for entropy in jumped.entropies[0]]
    assert 2 <= forced.count(False) <= 4
    # The first forced token needs the prefill's step, each choice one more.
    assert steps[0] <= forced.count(False) + 2
    assert steps[1] == len(stepped.tokens)


def test_forced_tokens_when_log_probs_are_asked_then_every_token_has_its_own():
    guide = regex_guide("(cat|dog) yes no")
    engine = make_engine(grammars=COMPILER)
    answer = run_one(engine, make_request((5, 6), guide=guide, end_id=END, return_log_probs=True, top_logprobs=3))
    assert detokenize(answer.tokens) in ("cat yes no", "dog yes no")
    assert len(answer.log_probs[0]) == len(answer.top[0]) == len(answer.tokens)
    assert all(np.isfinite(value) and value <= 0.0 for value in answer.log_probs[0])
    first = answer.top[0][0]
    assert {detokenize([token])[0] for token in first.ids} <= {"c", "d"}
    assert all(np.isfinite(value) for top in answer.top[0] for value in top.log_probs)
    logits = reference_logits(TinyModel(), [5, 6])
    expected = logits[answer.tokens[0]] - np.log(np.exp(logits).sum())
    assert answer.log_probs[0][0] == pytest.approx(expected)
