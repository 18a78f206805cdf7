"""Sampling of a caller: defaults, clamps, and one refusal per field by its tensor name (BC-03, BC-05)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tandem.errors import ContextLengthExceeded, InvalidRequest
from tandem.orchestration.config import EngineInfo
from tandem.orchestration.port import TextSampling
from tandem.orchestration.sampling import CheckedSampling, check_sampling
from tests.text_factories import END
from tests.unit.orchestration_fakes import TOKENIZER, ids_of

ENGINE = EngineInfo("fast_int4", 64, TOKENIZER)
VOCAB = TOKENIZER.vocab_size


def check(prompt_ids: tuple[int, ...] = (5, 6), default_max_tokens: int = 40, **fields: Any) -> CheckedSampling:
    return check_sampling(TextSampling(**fields), prompt_ids, ENGINE, default_max_tokens)


def test_defaults_are_greedy_with_the_end_token_of_the_tokenizer() -> None:
    params = check().params
    assert params.is_greedy
    assert (params.max_tokens, params.min_tokens, params.end_id, params.seed, params.num_return_sequences) == (40, 0, END, None, 1)
    assert (params.stop_words, params.bad_words, params.logit_bias) == ((), (), ())


@pytest.mark.parametrize(
    ("max_tokens", "num_prompt_tokens", "expected"),
    [(None, 2, 40), (None, 50, 14), (1, 2, 1), (62, 2, 62), (63, 2, 62), (2**31 - 1, 2, 62), (2**31 - 1, 63, 1)],
)
def test_max_tokens_is_cut_to_what_fits(max_tokens: int | None, num_prompt_tokens: int, expected: int) -> None:
    assert check((5,) * num_prompt_tokens, max_tokens=max_tokens).params.max_tokens == expected


def test_prompt_that_leaves_no_room_is_refused_with_length_and_limit() -> None:
    with pytest.raises(ContextLengthExceeded, match=r"input_ids.*64 prompt tokens.*64 tokens"):
        check((5,) * 64)


@pytest.mark.parametrize(
    ("given", "temperature"),
    [
        ({}, 0.0),
        ({"temperature": 0.0, "top_k": 5}, 0.0),
        ({"temperature": 0.7}, 0.7),
        ({"top_k": 5}, 1.0),
        ({"top_p": 0.9}, 1.0),
        ({"min_p": 0.1}, 1.0),
        ({"top_k": 1}, 0.0),
        ({"top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 3}, 0.0),
    ],
)
def test_temperature_not_given_is_greedy_unless_something_asks_for_sampling(given: dict[str, Any], temperature: float) -> None:
    assert check(**given).params.temperature == temperature


@pytest.mark.parametrize(
    ("given", "end_id"),
    [
        ({}, END),
        ({"end_id": 7}, 7),
        ({"end_id": -1}, None),
        ({"ignore_eos": True}, None),
        ({"ignore_eos": True, "end_id": -1}, None),
    ],
)
def test_end_token(given: dict[str, Any], end_id: int | None) -> None:
    assert check(**given).params.end_id == end_id


def test_stop_strings_stay_with_the_router() -> None:
    checked = check(stop_words=("a", "\n"))
    assert (checked.stop_strings, checked.params.stop_words) == (("a", "\n"), ())


def test_bad_words_are_sent_as_both_tokenizations_without_repeats() -> None:
    assert check(bad_words=("fox", "fox", " dog")).params.bad_words == (
        ids_of("fox"),
        ids_of(" fox"),
        ids_of(" dog"),
        ids_of("  dog"),
    )


def test_bad_word_that_spells_a_control_token_does_not_ban_it() -> None:
    assert all(END not in word for word in check(bad_words=("<|im_end|>",)).params.bad_words)


def test_logit_bias_of_the_last_id_is_accepted() -> None:
    assert check(logit_bias_ids=(VOCAB - 1, 0), logit_bias_values=(1.0, -100.0)).params.logit_bias == (
        (VOCAB - 1, 1.0),
        (0, -100.0),
    )


def test_min_tokens_may_equal_max_tokens_and_is_cut_with_it() -> None:
    assert check(min_tokens=5, max_tokens=5).params.min_tokens == 5
    assert check(min_tokens=1000, max_tokens=1000).params.min_tokens == 62


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        *(("max_tokens", {"max_tokens": value}) for value in (0, -1, -(2**31))),
        *(("min_tokens", {"min_tokens": value}) for value in (-1, 41)),
        ("min_tokens", {"min_tokens": 6, "max_tokens": 5}),
        *(("temperature", {"temperature": value}) for value in (-0.1, NAN, INF)),
        *(("top_p", {"top_p": value}) for value in (0.0, -0.5, 1.1, NAN)),
        *(("min_p", {"min_p": value}) for value in (-0.1, 1.1, NAN)),
        *(("top_k", {"top_k": value}) for value in (-1,)),
        *(("seed", {"seed": value}) for value in (-1, 2**64)),
        *(("repetition_penalty", {"repetition_penalty": value}) for value in (0.0, -1.0, NAN, INF)),
        *(("presence_penalty", {"presence_penalty": value}) for value in (-2.1, 2.1, NAN)),
        *(("frequency_penalty", {"frequency_penalty": value}) for value in (-2.1, 2.1, NAN)),
        *(("num_return_sequences", {"num_return_sequences": value}) for value in (0, -1, 129)),
        *(("top_logprobs", {"return_log_probs": True, "top_logprobs": value}) for value in (-1, 21)),
        ("top_logprobs", {"top_logprobs": 1}),
        *(("end_id", {"end_id": value}) for value in (-2, VOCAB)),
        ("end_id", {"end_id": 3, "ignore_eos": True}),
        *(("stop_words", {"stop_words": value}) for value in (("",), ("a", ""))),
        *(("bad_words", {"bad_words": value}) for value in (("",), ("a",) * 65, ("\ud800",))),
        *(("logit_bias_ids", {"logit_bias_ids": (value,), "logit_bias_values": (5.0,)}) for value in (VOCAB, -1, 10**12)),
        ("logit_bias_ids", {"logit_bias_ids": (7, 7), "logit_bias_values": (1.0, 2.0)}),
        *(("logit_bias_values", {"logit_bias_ids": (7,), "logit_bias_values": (value,)}) for value in (1000.0, -100.5, NAN, INF)),
        *(("logit_bias_values", {"logit_bias_ids": (7,), "logit_bias_values": value}) for value in ((), (1.0, 2.0))),
        *(("input_ids", {"prompt_ids": value}) for value in ((), (VOCAB,), (5, -1))),
    ],
)
def test_faulty_value_is_refused_naming_its_tensor(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(**fields)
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{field}: got ")


@pytest.mark.parametrize("value", [0, -1])
def test_refused_max_tokens_is_quoted_as_it_was_sent(value: int) -> None:
    with pytest.raises(InvalidRequest, match=f"got {value};"):
        check(max_tokens=value)
