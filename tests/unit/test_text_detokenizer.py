"""Incremental detokenizing: whole characters only, in order, nothing lost (BC-01, BC-25c)."""

from __future__ import annotations

import pytest

from tandem.text.detokenizer import Detokenizer
from tandem.text.tokenizer import Tokenizer
from tests.text_factories import END, make_tokenizer, sentencepiece_spec, tokenizer_config

FLAG_TEXT = "🫠é漢🏳️‍🌈" * 3


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """One token per byte."""
    by_piece = {tokenizer.piece(token_id): token_id for token_id in range(3, 259)}
    return [by_piece[bytes([byte])] for byte in data]


def test_characters_of_several_tokens_arrive_whole() -> None:
    tokenizer = make_tokenizer(num_merged=0)
    ids = tokenizer.encode(FLAG_TEXT, add_special_tokens=False)
    assert len(ids) == len(FLAG_TEXT.encode()), "every byte is a token of its own"
    detokenizer = Detokenizer(tokenizer)
    deltas = [detokenizer.push(token_id) for token_id in ids]
    assert "".join(deltas) == FLAG_TEXT
    assert [delta for delta in deltas if delta] == list(FLAG_TEXT), "one delta per character, none of them partial"
    assert detokenizer.flush() == ""


def test_unfinished_character_is_held_and_becomes_a_replacement_only_at_the_end() -> None:
    tokenizer = make_tokenizer(num_merged=0)
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(i) for i in byte_ids(tokenizer, b"a\xf0\x9f\xab")] == ["a", "", "", ""]
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_bytes_that_are_no_character_are_replaced_as_soon_as_that_is_sure() -> None:
    tokenizer = make_tokenizer(num_merged=0)
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(i) for i in byte_ids(tokenizer, b"\xe6\xbcA\xffB")] == ["", "", "\ufffdA", "\ufffd", "B"]


def test_special_tokens_are_skipped_even_inside_a_character() -> None:
    tokenizer = make_tokenizer(num_merged=0)
    first, second = byte_ids(tokenizer, "é".encode())
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(i) for i in (first, END, second)] == ["", "", "é"]


def test_bracketed_tokens_that_are_not_special_are_shown_by_their_name() -> None:
    tokenizer = make_tokenizer()
    think = tokenizer.token_id("<think>")
    assert think is not None
    assert Detokenizer(tokenizer).push(think) == "<think>"


def test_leading_blanks_are_kept() -> None:
    tokenizer = make_tokenizer()
    detokenizer = Detokenizer(tokenizer)
    text = "  the answer is"
    assert "".join(detokenizer.push(i) for i in tokenizer.encode(text, add_special_tokens=False)) == text


def test_sentencepiece_tokens_keep_the_leading_blank_and_join_byte_tokens() -> None:
    tokenizer = Tokenizer(sentencepiece_spec(), tokenizer_config(eos_token="</s>"))
    detokenizer = Detokenizer(tokenizer)
    ids = tokenizer.encode("hi é", add_special_tokens=True)
    assert [detokenizer.push(i) for i in ids] == ["", " hi", " ", "", "é"]


def test_unknown_id_is_an_error_and_changes_nothing() -> None:
    tokenizer = make_tokenizer(num_merged=0)
    first, second = byte_ids(tokenizer, "é".encode())
    detokenizer = Detokenizer(tokenizer)
    detokenizer.push(first)
    with pytest.raises(KeyError):
        detokenizer.push(tokenizer.vocab_size)
    assert detokenizer.push(second) == "é"
