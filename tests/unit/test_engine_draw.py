"""Which tokens may be drawn, in which share, and where the random numbers come from."""

import numpy as np
import pytest

from tandem.engine.draw import BlockedRow, TokenDrawer
from tandem.engine.rng import TokenRandom, fresh_seed
from tests.factories import kept_probs

PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
NUM_DRAWS = 1500


def draw_counts(logits, num_draws=NUM_DRAWS, **params):
    """How often each id is drawn when the uniform numbers are spread evenly: exact shares, no chance involved."""
    logits = np.asarray(logits)
    drawer = TokenDrawer(BlockedRow(len(logits), logits.dtype))
    uniforms = (np.arange(num_draws) + 0.5) / num_draws
    ids = [drawer.draw(logits, int(logits.argmax()), uniform, **{**PLAIN, **params}) for uniform in uniforms]
    return np.bincount(ids, minlength=len(logits))


LOGITS = np.log([0.4, 0.1, 0.3, 0.15, 0.05])


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"top_k": 2}, {0, 2}),
        ({"top_k": 9}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.7}, {0, 2}),  # 0.4 + 0.3 reaches 0.7
        ({"top_p": 0.701}, {0, 2, 3}),
        ({"top_p": 1e-9}, {0}),
        ({"min_p": 0.3}, {0, 2, 3}),  # at least 0.3 * 0.4
        ({"min_p": 1.0}, {0}),
        ({"top_k": 3, "top_p": 0.8}, {0, 2}),  # of the 0.85 that top-k leaves, 0.7 is more than 0.8
        ({"min_p": 0.2, "top_p": 0.85}, {0, 2, 3}),  # min-p leaves 0.95, of which 0.7 is less than 0.85
        ({"temperature": 0.5, "top_p": 0.55}, {0}),  # 0.16 of 0.285
        ({"temperature": 2.0, "top_p": 0.55}, {0, 2}),
    ],
)
def test_draw_when_filters_are_set_then_exactly_the_allowed_tokens_appear(params, allowed):
    assert set(np.flatnonzero(draw_counts(LOGITS, **params))) == allowed


def test_draw_when_tokens_tie_at_the_cut_then_lower_ids_stay():
    assert set(np.flatnonzero(draw_counts([0.0, 1.0, 1.0, 1.0], top_k=2))) == {1, 2}
    assert set(np.flatnonzero(draw_counts([1.0, 1.0, 1.0, 1.0], top_p=0.5))) == {0, 1}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.8])
@pytest.mark.parametrize("params", [{}, {"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.02}])
def test_draw_when_uniform_numbers_are_even_then_shares_are_the_probabilities(dtype, temperature, params):
    logits = np.random.default_rng(0).normal(0.0, 2.0, 600).astype(dtype)
    counts = draw_counts(logits, temperature=temperature, **params)
    probs = kept_probs(logits.astype(np.float64), **{**PLAIN, **params, "temperature": temperature})
    # An interval of length p holds p * NUM_DRAWS evenly spaced points, give or take one.
    assert np.abs(counts - probs * NUM_DRAWS).max() < 1.01


@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.999])
def test_draw_when_nucleus_is_too_wide_to_sort_then_equal_inversion_by_definition(spread, top_p):
    logits = np.random.default_rng(5).normal(0.0, spread, 9000)
    logits[::7] = logits[0]  # many ties
    params = {**PLAIN, "temperature": 1.3, "top_p": top_p}
    cumulative = np.cumsum(kept_probs(logits, **params))
    drawer = TokenDrawer(BlockedRow(len(logits), logits.dtype))
    for uniform in np.random.default_rng(6).random(60):
        expected = int(np.searchsorted(cumulative, uniform, side="right"))
        assert drawer.draw(logits, int(logits.argmax()), uniform, **params) == expected


def test_draw_when_seeded_stream_is_used_then_frequencies_match_within_four_sigma():
    logits = np.log([0.5, 0.25, 0.15, 0.1])
    drawer = TokenDrawer(BlockedRow(4, logits.dtype))
    random = TokenRandom(seed=11, sequence_index=0)
    ids = [drawer.draw(logits, 0, random.uniform(position), **PLAIN) for position in range(NUM_DRAWS)]
    for token, prob in enumerate(np.exp(logits)):
        sigma = np.sqrt(NUM_DRAWS * prob * (1.0 - prob))
        assert abs(ids.count(token) - NUM_DRAWS * prob) < 4.0 * sigma


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-53])
@pytest.mark.parametrize("params", [{}, {"top_p": 0.99}, {"top_k": 3}, {"min_p": 0.1}])
def test_draw_when_uniform_is_at_either_end_then_no_impossible_token(uniform, params):
    logits = np.full(600, -np.inf, np.float32)
    logits[[3, 400]] = [1.0, 2.0]
    drawer = TokenDrawer(BlockedRow(600, logits.dtype))
    assert drawer.draw(logits, 400, uniform, **{**PLAIN, **params}) == (3 if uniform == 0.0 else 400)


def test_draw_when_no_logit_is_finite_then_none():
    logits = np.full(5, -np.inf)
    assert TokenDrawer(BlockedRow(5, logits.dtype)).draw(logits, 0, 0.5, **PLAIN) is None


def test_draw_when_row_is_used_again_then_nothing_of_the_last_row_remains():
    drawer = TokenDrawer(BlockedRow(300, np.dtype(np.float64)))
    peaked, flat = np.zeros(300), np.zeros(300)
    peaked[7] = 50.0
    assert drawer.draw(peaked, 7, 0.9, **PLAIN) == 7
    assert drawer.draw(flat, 0, 0.5, **PLAIN) == 150
    assert drawer.draw(peaked, 7, 0.1, **PLAIN) == 7


def test_token_random_when_asked_in_any_order_then_philox_stream_of_the_key():
    stream = np.random.Generator(np.random.Philox(key=np.array([42, 3], np.uint64))).random(200)
    random = TokenRandom(seed=42, sequence_index=3)
    for position in (0, 1, 63, 64, 199, 5, 128, 0):
        assert random.uniform(position) == stream[position]


def test_token_random_when_seed_or_sequence_differs_then_numbers_differ():
    numbers = {TokenRandom(seed, index).uniform(0) for seed in (0, 1, 2**64 - 1) for index in range(3)}
    assert len(numbers) == 9
    assert all(0.0 <= number < 1.0 for number in numbers)
    assert fresh_seed() != fresh_seed()
