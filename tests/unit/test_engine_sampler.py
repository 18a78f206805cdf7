"""The sampler seen through the engine, over a decoder that gives the same row of logits at every step."""

import math

import numpy as np
import pytest

from tandem.engine.sampler import LOG_PROB_FLOOR
from tandem.types import FinishReason
from tests.factories import ScriptedDecoder, make_decoder, make_engine, make_prompt, make_request, run_all, run_one

ROW = np.log([0.1, 0.4, 0.2, 0.3])


def answer_for(row=ROW, **sampling):
    return run_one(make_engine(ScriptedDecoder(row)), make_request([0], **sampling))


def test_greedy_when_nothing_is_set_then_highest_logit_and_lowest_id_in_a_tie():
    assert answer_for(max_tokens=3).tokens == [1, 1, 1]
    assert answer_for([1.0, 2.0, 2.0], max_tokens=2).tokens == [1, 1]


@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 0.9, "top_k": 1}, {"temperature": 1e-6}, {"temperature": 5e-324}, {"temperature": 0.0, "top_p": 0.5}],
)
def test_greedy_when_parameters_leave_one_choice_then_no_chance_is_involved(sampling):
    assert answer_for(max_tokens=5, **sampling).tokens == [1] * 5


def test_penalties_when_greedy_then_tokens_by_hand():
    # log 0.4 = -0.92, log 0.3 = -1.20, log 0.2 = -1.61, log 0.1 = -2.30; every use of a token costs 0.5
    # 1 (now -1.42), 3 (-1.70), 1 (-1.92), 2 (-2.11), 3 (-2.20), 1
    assert answer_for(max_tokens=6, frequency_penalty=0.5).tokens == [1, 3, 1, 2, 3, 1]


def test_logit_bias_when_greedy_then_raised_token_wins_and_log_prob_is_unmasked():
    answer = answer_for(max_tokens=2, logit_bias=((0, 5.0),), return_log_probs=True)
    assert answer.tokens == [0, 0]
    assert answer.log_probs[0] == pytest.approx([math.log(0.1)] * 2)
    assert answer.cum_log_prob[0] == pytest.approx(2 * math.log(0.1))


def test_log_probs_when_not_asked_for_then_left_out():
    answer = answer_for(max_tokens=2)
    assert (answer.log_probs[0], answer.top[0], answer.cum_log_prob[0]) == ([], [], 0.0)


def test_entropy_when_processors_change_the_row_then_still_of_the_model():
    answer = answer_for(max_tokens=2, bad_words=((1,),), temperature=0.3, seed=1)
    expected = -sum(p * math.log(p) for p in (0.1, 0.4, 0.2, 0.3))
    assert answer.entropies[0] == pytest.approx([expected] * 2)


def test_top_logprobs_when_asked_for_then_best_first_and_at_most_the_vocabulary():
    answer = answer_for(max_tokens=1, top_logprobs=20)
    assert answer.top[0][0].ids == (1, 3, 2, 0)
    assert answer.top[0][0].log_probs == pytest.approx([math.log(p) for p in (0.4, 0.3, 0.2, 0.1)])
    assert answer.log_probs[0] == []


def test_log_probs_when_model_masks_tokens_then_finite():
    """BC-07: minus infinity never leaves the engine."""
    answer = answer_for([0.0, 0.0, -np.inf], max_tokens=1, top_logprobs=3, return_log_probs=True)
    assert answer.top[0][0].ids == (0, 1)
    far = answer_for([0.0, -1e5], max_tokens=1, top_logprobs=2, bad_words=((0,),), return_log_probs=True)
    assert far.tokens == [1]
    assert far.log_probs[0] == [LOG_PROB_FLOOR]
    assert far.top[0][0].log_probs == (0.0, LOG_PROB_FLOOR)


def test_seed_when_neighbours_change_then_same_tokens():
    """BC-08."""

    def request(seed, number):
        return make_request(make_prompt(number, 6), max_tokens=16, temperature=0.8, seed=seed)

    a, c = request(42, 0), request(7, 1)
    alone = {tuple(run_one(make_engine(), a).tokens) for _ in range(3)}
    together = [run_all(make_engine(make_decoder(num_blocks=12)), [request(None, 2), c, a]) for _ in range(5)]
    assert alone == {tuple(answers[a.request_id].tokens) for answers in together}
    assert len(alone) == 1
    assert len({tuple(answers[c.request_id].tokens) for answers in together}) == 1


def test_seed_when_not_given_then_runs_differ():
    runs = {tuple(answer_for(np.zeros(50), max_tokens=12, temperature=1.0).tokens) for _ in range(4)}
    assert len(runs) == 4


def test_choices_when_seeded_then_differ_from_each_other_and_repeat():
    first, second = (answer_for(np.zeros(50), max_tokens=12, temperature=1.0, seed=5, num_return_sequences=3) for _ in range(2))
    assert first.token_ids == second.token_ids
    assert len({tuple(tokens) for tokens in first.token_ids.values()}) == 3
    alone = answer_for(np.zeros(50), max_tokens=12, temperature=1.0, seed=5)
    assert first.token_ids[0] == alone.tokens


def test_bad_words_when_they_leave_no_token_then_request_fails_and_neighbour_goes_on():
    engine = make_engine(ScriptedDecoder(ROW))
    hopeless = make_request([0], bad_words=((0,), (1,), (2,), (3,)))
    neighbour = make_request([0], max_tokens=3)
    answers = run_all(engine, [hopeless, neighbour])
    assert answers[hopeless.request_id].finish_reason == FinishReason.ERROR
    assert answers[neighbour.request_id].tokens == [1, 1, 1]
