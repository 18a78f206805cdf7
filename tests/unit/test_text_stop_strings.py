"""Stop strings in text that arrives in pieces (BC-02)."""

from __future__ import annotations

import time

import pytest

from tandem.errors import InvalidRequest
from tandem.text.stop_strings import MAX_STOP_CHARS, MAX_STOP_STRINGS, StopMatcher, check_stop_strings


def feed(stops: list[str], *deltas: str) -> tuple[list[str], str | None]:
    """What is shown per delta, the flush last, and the match."""
    matcher = StopMatcher(stops)
    shown = [matcher.push(delta) for delta in deltas]
    return [*shown, matcher.flush()], matcher.matched


def test_match_across_deltas_shows_nothing_of_the_stop_string() -> None:
    assert feed(["STOP"], "abS", "TO", "P!", "more") == (["ab", "", "", "", ""], "STOP")


def test_match_inside_one_delta_cuts_it() -> None:
    assert feed(["STOP"], "abSTOPcd") == (["ab", ""], "STOP")


def test_possible_beginning_is_held_until_it_is_refuted() -> None:
    assert feed(["STOP"], "S", "T", "x", "y") == (["", "", "STx", "y", ""], None)


def test_held_text_is_given_back_at_the_end() -> None:
    assert feed(["STOP"], "abST") == (["ab", "ST"], None)


def test_overlapping_beginnings_are_followed() -> None:
    assert feed(["aab"], "aa", "a", "b") == (["", "a", "", ""], "aab")
    assert feed(["abab!"], "abab", "ab!") == (["", "ab", ""], "abab!")


def test_match_that_is_complete_first_wins_however_the_text_is_cut() -> None:
    assert feed(["abcd", "bc"], "abcd") == (["a", ""], "bc")
    assert feed(["abcd", "bc"], "a", "b", "c", "d")[1] == "bc"


def test_of_matches_complete_at_one_character_the_longest_wins() -> None:
    for stops in (["bc", "abc"], ["abc", "bc"]):
        assert feed(stops, "xabc") == (["x", ""], "abc")


def test_several_stop_strings_hold_back_the_longest_possible_beginning() -> None:
    assert feed(["wxyz", "yq"], "vwxy", "q") == (["v", "wx", ""], "yq")


def test_stop_string_of_line_feeds_and_wide_characters_matches() -> None:
    assert feed(["\n\n"], "a\n", "\nb") == (["a", "", ""], "\n\n")
    assert feed(["漢🏳️"], "é漢", "🏳", "️x") == (["é", "", "", ""], "漢🏳️")


def test_without_stop_strings_text_passes_at_once() -> None:
    assert feed([], "a", "b") == (["a", "b", ""], None)


def test_long_periodic_stop_string_costs_linear_time() -> None:
    stop = "a" * (MAX_STOP_CHARS - 1) + "b"
    matcher = StopMatcher([stop])
    start = time.process_time()
    for _ in range(20_000):
        matcher.push("a")
    assert time.process_time() - start < 2.0
    assert len(matcher.flush()) == MAX_STOP_CHARS - 1


@pytest.mark.parametrize(
    "stops", [[""], ["a", ""], ["a" * (MAX_STOP_CHARS + 1)], [str(number) for number in range(MAX_STOP_STRINGS + 1)]]
)
def test_faulty_stop_strings_are_refused_by_field(stops: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_stop_strings(stops)
    assert caught.value.field == "stop_words"


def test_legal_stop_strings_are_kept_as_they_are() -> None:
    assert check_stop_strings([" a ", "\n"]) == (" a ", "\n")
    assert check_stop_strings([]) == ()
