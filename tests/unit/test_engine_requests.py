"""What a request may ask for, how its sequences end, and what is refused before it enters the engine."""

import pytest

from tandem.engine import EngineConfig
from tandem.errors import ContextLengthExceeded, InvalidRequest, SetupError
from tandem.types import FinishReason
from tests.factories import ScriptedDecoder, assert_is_idle, make_decoder, make_engine, make_prompt, make_request, run_all, run_one

# 1 is always the best token; 2 follows, then 3 (the end token in most tests), then 0.
ROW = [0.0, 3.0, 2.0, 1.0]


def engine_of(row=ROW, **config):
    return make_engine(ScriptedDecoder(row), **config)


# --- how sequences end ------------------------------------------------------------------------------------------------------


def test_end_token_when_sampled_then_not_emitted_and_stop():
    answer = run_one(engine_of([0.0, 1.0, 0.0, 5.0]), make_request([0], end_id=3))
    assert (answer.tokens, answer.finish_reason, answer.num_last) == ([], FinishReason.STOP, 1)
    assert answer.entropies[0] == []


@pytest.mark.parametrize("end_id", [None, -1])
def test_end_token_when_not_given_then_generation_runs_to_the_limit(end_id):
    answer = run_one(engine_of([0.0, 1.0, 0.0, 5.0]), make_request([0], end_id=end_id, max_tokens=4))
    assert (answer.tokens, answer.finish_reason) == ([3, 3, 3, 3], FinishReason.LENGTH)


def test_max_tokens_when_one_then_exactly_one_token_and_length():
    """BC-03."""
    answer = run_one(engine_of(), make_request([0], max_tokens=1, end_id=3))
    assert (answer.tokens, answer.finish_reason) == ([1], FinishReason.LENGTH)


def test_min_tokens_when_end_token_is_best_then_suppressed_so_long():
    answer = run_one(engine_of([0.0, 1.0, 0.0, 5.0]), make_request([0], end_id=3, min_tokens=3))
    assert (answer.tokens, answer.finish_reason) == ([1, 1, 1], FinishReason.STOP)


def test_min_tokens_when_stop_word_is_best_then_completion_is_long_enough():
    answer = run_one(engine_of(), make_request([0], stop_words=((1,),), min_tokens=3))
    assert (answer.tokens, answer.finish_reason) == ([2, 2, 1], FinishReason.STOP)


def test_min_tokens_when_above_max_tokens_then_length():
    answer = run_one(engine_of([0.0, 1.0, 0.0, 5.0]), make_request([0], end_id=3, min_tokens=9, max_tokens=2))
    assert (answer.tokens, answer.finish_reason) == ([1, 1], FinishReason.LENGTH)


def test_stop_word_when_completed_then_stays_in_the_output():
    answer = run_one(engine_of(), make_request([0], stop_words=((2,), (1, 1, 1)), max_tokens=9))
    assert (answer.tokens, answer.finish_reason) == ([1, 1, 1], FinishReason.STOP)


def test_stop_word_when_completed_by_the_last_allowed_token_then_stop():
    answer = run_one(engine_of(), make_request([0], stop_words=((1, 1),), max_tokens=2))
    assert answer.finish_reason == FinishReason.STOP


def test_stop_word_when_it_lies_across_prompt_and_completion_then_no_match():
    answer = run_one(engine_of(), make_request([0, 2], stop_words=((2, 1),), max_tokens=3))
    assert (answer.tokens, answer.finish_reason) == ([1, 1, 1], FinishReason.LENGTH)


def test_bad_words_when_sequence_is_forbidden_then_never_written():
    answer = run_one(engine_of(), make_request([0], bad_words=((1, 1),), max_tokens=6))
    assert answer.tokens == [1, 2, 1, 2, 1, 2]


def test_choices_when_they_end_apart_then_one_last_delta_for_the_request():
    """BC-09 at engine level: each sequence has one finish reason, the request one end."""
    row = [0.0, 0.0, 0.0, 0.7]
    answer = run_one(engine_of(row), make_request([0], temperature=1.0, seed=4, end_id=3, max_tokens=12, num_return_sequences=4))
    lengths = [len(answer.token_ids[index]) for index in range(4)]
    assert len(set(lengths)) > 1
    assert set(answer.finish_reasons) == {0, 1, 2, 3}
    assert answer.num_last == 1


def test_choices_when_they_end_with_the_first_token_then_blocks_are_free():
    answer = run_one(engine_of(), make_request([0] * 5, max_tokens=1, num_return_sequences=4))
    assert answer.token_ids == {0: [1], 1: [1], 2: [1], 3: [1]}


# --- context and memory -----------------------------------------------------------------------------------------------------


def test_max_tokens_when_huge_then_clamped_to_the_context():
    """BC-03: nothing large is allocated for 2147483647 tokens."""
    engine = engine_of()
    request = engine.prepare(make_request([0] * 90, max_tokens=2147483647))
    assert len(request.sequences[0].token_ids) == 96
    engine.add(request)
    answer = run_all(engine, [])[request.request_id]
    assert (len(answer.tokens), answer.finish_reason) == (6, FinishReason.LENGTH)


def test_max_seq_len_when_config_is_lower_than_decoder_then_config_counts():
    answer = run_one(engine_of(max_seq_len=10), make_request([0] * 7, max_tokens=50))
    assert len(answer.tokens) == 3


@pytest.mark.parametrize("num_prompt_tokens", [96, 97, 20_000])
def test_prompt_when_it_fills_the_context_then_refused_and_neighbours_unharmed(num_prompt_tokens):
    """BC-03 (b)."""
    engine = make_engine()
    with pytest.raises(ContextLengthExceeded, match=rf"{num_prompt_tokens} prompt tokens.*96") as caught:
        engine.prepare(make_request([0] * num_prompt_tokens))
    assert caught.value.field == "prompt_ids"
    answers = run_all(engine, [make_request(make_prompt(i, 4)) for i in range(5)])
    assert all(answer.finish_reason == FinishReason.LENGTH for answer in answers.values())


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "fits"), [(10, 11, True), (10, 12, False), (21, 1, False), (20, 1, True)]
)
def test_request_when_it_can_never_fit_the_pool_then_refused_at_once(num_prompt_tokens, max_tokens, fits):
    # 5 blocks of 4; the last token of a completion is never computed.
    engine = make_engine(make_decoder(num_blocks=5))
    request = make_request(make_prompt(0, num_prompt_tokens), max_tokens=max_tokens)
    if fits:
        assert len(run_one(engine, request).tokens) == max_tokens
    else:
        with pytest.raises(InvalidRequest, match=r"max_tokens: got .*holds 20 tokens; lower max_tokens"):
            engine.prepare(request)
        assert_is_idle(engine)


# --- refusals ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt_ids", "sampling", "message"),
    [
        ((), {}, r"prompt_ids: got no tokens; give at least one"),
        ((0, 4), {}, r"prompt_ids: got token id 4; ids of this model are 0 to 3"),
        ((-1,), {}, r"prompt_ids: got token id -1;"),
        ((2**70,), {}, r"prompt_ids: got token id 1180591620717411303424;"),
        ((0,), {"logit_bias": ((4, 1.0),)}, r"logit_bias: got token id 4; ids of this model are 0 to 3"),
        ((0,), {"logit_bias": ((-1, 1.0),)}, r"logit_bias: got token id -1;"),
        ((0,), {"logit_bias": ((999999999999, 1.0),)}, r"logit_bias: got token id 999999999999;"),
        ((0,), {"logit_bias": ((1, 1e300),)}, r"logit_bias: got 1: 1e\+300;"),
        ((0,), {"end_id": 4}, r"end_id: got token id 4;"),
        ((0,), {"end_id": -2}, r"end_id: got token id -2;"),
        ((0,), {"stop_words": ((1, 9),)}, r"stop_words: got token id 9;"),
        ((0,), {"bad_words": ((9,),)}, r"bad_words: got token id 9;"),
        ((0,), {"num_return_sequences": 5}, r"num_return_sequences: got 5; this engine runs at most 4 sequences"),
    ],
)
def test_request_when_a_field_is_wrong_then_refused_naming_field_value_and_remedy(prompt_ids, sampling, message):
    """BC-05 among them: an id past the vocabulary never reaches the row of a neighbour."""
    engine = engine_of()
    neighbour = make_request([0], max_tokens=4)
    engine.add(engine.prepare(neighbour))
    engine.step()
    with pytest.raises(InvalidRequest, match=message):
        engine.prepare(make_request(prompt_ids, **sampling))
    assert len(run_all(engine, [])[neighbour.request_id].tokens) == 3  # the first was given before
    assert engine.stats().num_accepted == 1


def test_logit_bias_when_id_is_the_last_of_the_vocabulary_then_accepted():
    assert run_one(engine_of(), make_request([0], logit_bias=((3, 9.0),), max_tokens=2)).tokens == [3, 3]


def test_request_id_when_empty_or_in_use_then_refused():
    engine = engine_of()
    with pytest.raises(InvalidRequest, match="request_id"):
        engine.prepare(make_request([0], request_id=""))
    engine.add(engine.prepare(make_request([0], request_id="a")))
    with pytest.raises(InvalidRequest, match="request_id: got a; a request with this id is running"):
        engine.add(engine.prepare(make_request([0], request_id="a")))
    run_all(engine, [])
    assert run_one(engine, make_request([0], request_id="a", max_tokens=2)).tokens == [1, 1]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs: got 0"),
        ({"max_num_seqs": True}, "max_num_seqs: got True"),
        ({"max_num_batched_tokens": 1.5}, "max_num_batched_tokens: got 1.5"),
        ({"max_num_batched_tokens": 15}, "max_num_batched_tokens: got 15; each of the 16 sequences"),
        ({"max_queue_size": -1}, "max_queue_size: got -1"),
        ({"max_seq_len": 1}, "max_seq_len: got 1"),
    ],
)
def test_config_when_a_limit_is_wrong_then_one_sentence(config, message):
    with pytest.raises(SetupError, match=message):
        EngineConfig(**config)
