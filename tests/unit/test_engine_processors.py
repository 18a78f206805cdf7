"""What changes logits before a token is chosen, by hand computation."""

import numpy as np
import pytest

from tandem.engine.processors import MAX_ABS_LOGIT, Processors
from tandem.engine.words import WordList
from tandem.types import SamplingParams


def apply(logits, output_ids=(), prompt_ids=(0,), **sampling):
    params = SamplingParams(**sampling)
    processors = Processors(params, prompt_ids, max_tokens=16)
    for token in output_ids:
        processors.add(token)
    banned = processors.banned_ids(list(output_ids))
    row = np.array(logits, np.float64)
    if processors.changes_logits(banned):
        processors.apply(row, banned)
    return row.tolist()


def test_repetition_penalty_when_token_is_in_prompt_or_completion_then_divided_or_multiplied():
    # prompt 0, completion 1 and 2 and 2; token 3 is new. Applied once, however often the token appears.
    assert apply([3.0, -3.0, 1.5, 4.0], [1, 2, 2], repetition_penalty=1.5) == [2.0, -4.5, 1.0, 4.0]


def test_presence_and_frequency_penalty_when_tokens_repeat_then_only_completion_counts():
    logits = apply([1.0, 1.0, 1.0, 1.0], [1, 2, 2], presence_penalty=0.5, frequency_penalty=0.25)
    assert logits == [1.0, 1.0 - 0.5 - 0.25, 1.0 - 0.5 - 0.5, 1.0]


def test_negative_penalties_when_set_then_repeated_tokens_are_raised():
    assert apply([1.0, 1.0], [1, 1], presence_penalty=-1.0, frequency_penalty=-0.5) == [1.0, 3.0]


def test_logit_bias_when_penalty_is_set_too_then_bias_comes_first():
    assert apply([-1.0, 0.0], prompt_ids=(0,), logit_bias=((0, 3.0),), repetition_penalty=2.0) == [1.0, 0.0]


def test_logit_bias_when_id_is_named_twice_then_last_counts():
    assert apply([0.0, 0.0], logit_bias=((1, 3.0), (1, -2.0))) == [0.0, -2.0]


def test_penalty_when_it_would_overflow_then_logits_stay_finite():
    assert apply([1e20, -1e20], [1], repetition_penalty=1e-300)[0] == MAX_ABS_LOGIT
    assert apply([1e20, -1e20], [1], repetition_penalty=1e300)[1] == -MAX_ABS_LOGIT


def test_bad_words_when_prefix_is_written_then_last_token_is_banned():
    words = ((1,), (2, 3), (2, 2, 0))
    free, banned = 0.0, -np.inf
    assert apply([0.0] * 4, [], bad_words=words) == [free, banned, free, free]
    assert apply([0.0] * 4, [2], bad_words=words) == [free, banned, free, banned]
    assert apply([0.0] * 4, [2, 2], bad_words=words) == [banned, banned, free, banned]


def test_bad_words_when_bias_raises_them_then_still_banned():
    assert apply([0.0, 0.0], bad_words=((1,),), logit_bias=((1, 100.0),)) == [0.0, -np.inf]


def test_bad_words_when_prompt_ends_with_prefix_then_free():
    assert apply([0.0] * 4, [], prompt_ids=(2,), bad_words=((2, 3),)) == [0.0] * 4


@pytest.mark.parametrize(("num_output", "is_banned"), [(0, True), (2, True), (3, False)])
def test_min_tokens_when_completion_is_shorter_then_end_token_is_banned(num_output, is_banned):
    logits = apply([0.0] * 4, [1] * num_output, min_tokens=3, end_id=2)
    assert (logits[2] == -np.inf) is is_banned


@pytest.mark.parametrize(("num_output", "is_banned"), [(0, True), (1, True), (2, False)])
def test_min_tokens_when_stop_word_would_end_too_early_then_banned(num_output, is_banned):
    # A stop word is part of the completion: as the third token it may end a completion of three.
    logits = apply([0.0] * 4, [1] * num_output, min_tokens=3, stop_words=((3,),))
    assert (logits[3] == -np.inf) is is_banned


def test_min_tokens_when_longer_stop_word_has_begun_then_only_its_end_is_banned():
    assert apply([0.0] * 4, [1], min_tokens=5, stop_words=((1, 3),)) == [0.0, 0.0, 0.0, -np.inf]


def test_stop_words_when_min_tokens_is_not_set_then_nothing_is_changed():
    assert Processors(SamplingParams(stop_words=((1,),), end_id=2), (0,), 8).is_none


@pytest.mark.parametrize(
    ("output_ids", "is_completed"), [([5], True), ([1], False), ([1, 2], True), ([2, 1], False), ([1, 1, 2], True), ([2], False)]
)
def test_word_list_when_completion_ends_with_a_word_then_completed(output_ids, is_completed):
    assert WordList([(5,), (1, 2), (3, 1, 2)]).is_completed_by(output_ids) is is_completed
