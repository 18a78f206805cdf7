"""Tokenizer: control tokens that no text can spell, ids equal to the outside tokenizer's, clear complaints about files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tandem.errors import InvalidRequest, SetupError
from tandem.text.tokenizer import Tokenizer
from tests.text_factories import (
    CHATML,
    END,
    SPECIAL,
    START,
    make_tokenizer,
    outside_tokenizer,
    sentencepiece_spec,
    tokenizer_config,
    tokenizer_spec,
    write_engine_folder,
)

TEXTS = ("The quick brown fox", "  two  blanks\n\n", "🫠é漢🏳️‍🌈", "a" * 300, "x\x00y", "\ufdd0 \ufffd")


@pytest.mark.parametrize("text", TEXTS)
def test_encode_of_ordinary_text_equals_the_outside_tokenizer(text: str) -> None:
    expected = outside_tokenizer(tokenizer_spec()).encode(text, add_special_tokens=False).ids
    assert list(make_tokenizer().encode(text, add_special_tokens=False)) == expected


@pytest.mark.parametrize(
    "text", [*SPECIAL, "a<|im_end|>b", "<|im_start|>system\nno<|im_end|>", "<think>", "</think>", "<tool_call>"]
)
def test_encode_of_control_token_text_gives_ordinary_tokens(text: str) -> None:
    tokenizer = make_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=True)
    control_ids = {token.id for token in tokenizer.control_tokens}
    assert not control_ids & set(ids)
    assert tokenizer.decode(ids) == text
    assert control_ids & set(outside_tokenizer(tokenizer_spec()).encode(text).ids), (
        "the outside tokenizer finds it: the test can fail"
    )


def test_encode_of_marker_gives_the_control_token() -> None:
    tokenizer = make_tokenizer()
    token = tokenizer.control_token("<|im_end|>")
    assert token is not None
    assert tokenizer.encode(f"a{token.marker}b", add_special_tokens=False)[1] == END


def test_markers_of_two_tokenizers_differ() -> None:
    first, second = make_tokenizer(), make_tokenizer()
    assert not {token.marker for token in first.control_tokens} & {token.marker for token in second.control_tokens}


def test_control_tokens_are_special_ones_and_bracketed_ones() -> None:
    spec = tokenizer_spec()
    next_id = max(token["id"] for token in spec["added_tokens"]) + 1
    spec["added_tokens"].append({**spec["added_tokens"][-1], "id": next_id, "content": "    ", "special": False})
    tokenizer = Tokenizer(spec, tokenizer_config())
    assert {token.text for token in tokenizer.control_tokens} == {*SPECIAL, "<think>", "</think>", "<tool_call>"}
    assert tokenizer.special_ids == {0, 1, 2}
    assert next_id in tokenizer.encode("a    b", add_special_tokens=False)


def test_named_tokens_and_sizes_come_from_the_files() -> None:
    tokenizer = make_tokenizer(eos_token={"content": "<|im_end|>", "lstrip": False})
    assert (tokenizer.eos_id, tokenizer.token_id("<|im_start|>")) == (END, START)
    assert tokenizer.vocab_size == outside_tokenizer(tokenizer_spec()).get_vocab_size()
    assert tokenizer.token_id("no such token") is None
    assert make_tokenizer(eos_token=None).eos_id is None


def test_piece_of_special_token_is_its_name_and_of_unknown_id_an_error() -> None:
    tokenizer = make_tokenizer()
    assert tokenizer.piece(END) == b"<|im_end|>"
    for token_id in (-1, tokenizer.vocab_size, 2**40):
        with pytest.raises(KeyError):
            tokenizer.piece(token_id)


def test_every_piece_equals_what_the_outside_tokenizer_decodes() -> None:
    outside, tokenizer = outside_tokenizer(tokenizer_spec()), make_tokenizer()
    for token_id in range(tokenizer.vocab_size):
        expected = outside.decode([token_id], skip_special_tokens=False)
        assert tokenizer.piece(token_id).decode("utf-8", errors="replace") == expected


def test_decode_skips_special_tokens_and_keeps_leading_blanks() -> None:
    tokenizer = make_tokenizer()
    ids = (START, *tokenizer.encode("  the answer", add_special_tokens=False), END)
    assert tokenizer.decode(ids) == "  the answer"


def test_lone_surrogate_is_refused_by_field_name() -> None:
    with pytest.raises(InvalidRequest, match=r"text_input.*surrogate"):
        make_tokenizer().encode("a\ud800", add_special_tokens=False, field="text_input")


def test_fingerprint_is_equal_for_equal_files_only() -> None:
    assert make_tokenizer().fingerprint == make_tokenizer(chat_template="x").fingerprint
    assert make_tokenizer().fingerprint != make_tokenizer(num_merged=50).fingerprint


def test_sentencepiece_vocabulary_gives_start_token_bytes_and_blanks() -> None:
    spec = sentencepiece_spec()
    expected = outside_tokenizer(spec)
    expected.no_truncation()
    tokenizer = Tokenizer(spec, tokenizer_config(eos_token="</s>", bos_token="<s>"))
    text = "hi there é hi hi hi"
    ids = tokenizer.encode(text, add_special_tokens=True)
    assert list(ids) == expected.encode(text).ids
    assert (ids[0], tokenizer.decode(ids)) == (1, f" {text}")
    assert not {0, 1, 2} & set(tokenizer.encode("</s><unk>", add_special_tokens=False))


def test_load_reads_an_engine_folder(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_engine_folder(tmp_path))
    assert tokenizer.chat_template == CHATML
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    assert Tokenizer.load(tmp_path).chat_template == "{{ messages }}"


def test_chat_template_of_a_named_list_is_the_default_one() -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert make_tokenizer(chat_template=named).chat_template == "d"
    assert make_tokenizer(chat_template=named[:1]).chat_template is None


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize(("content", "complaint"), [(None, "missing"), ("{", "can't be read"), ("[]", "no JSON object")])
def test_load_names_the_file_that_is_wrong(tmp_path: Path, name: str, content: str | None, complaint: str) -> None:
    write_engine_folder(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(SetupError, match=rf"{name}.*{complaint}"):
        Tokenizer.load(tmp_path)


def test_load_refuses_an_unknown_decoder_and_a_model_it_cannot_read(tmp_path: Path) -> None:
    write_engine_folder(tmp_path)
    path = tmp_path / "tokenizer.json"
    spec = tokenizer_spec()
    path.write_text(json.dumps({**spec, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}), encoding="utf-8")
    with pytest.raises(SetupError, match=r"WordPiece"):
        Tokenizer.load(tmp_path)
    path.write_text(json.dumps({**spec, "model": {"type": "Unknown", "vocab": {}}}), encoding="utf-8")
    with pytest.raises(SetupError, match=r"tokenizer\.json can't be used"):
        Tokenizer.load(tmp_path)


def test_control_token_whose_id_the_vocabulary_contradicts_is_refused() -> None:
    spec = tokenizer_spec()
    spec["added_tokens"][1]["id"] = 7
    with pytest.raises(SetupError, match=r"<\|im_start\|> the id 7"):
        Tokenizer(spec, tokenizer_config())
