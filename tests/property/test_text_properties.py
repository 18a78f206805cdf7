"""Text in pieces: whatever the cut, the joined result is that of the whole."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tandem.text.chat_template import ChatTemplate
from tandem.text.detokenizer import Detokenizer
from tandem.text.messages import ChatMessage
from tandem.text.stop_strings import StopMatcher
from tests.text_factories import END, START, make_tokenizer, outside_tokenizer, tokenizer_spec

TOKENIZER = make_tokenizer()
BYTES_ONLY = make_tokenizer(num_merged=0)
OUTSIDE = outside_tokenizer(tokenizer_spec())
TEMPLATE = ChatTemplate(TOKENIZER.chat_template or "", TOKENIZER)

anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
markers = st.sampled_from(["<|im_start|>", "<|im_end|>", "<|im_", "end|>", "<think>", "<|", "|>", "\ufdd0", "\ufdd1", " ", "\n"])


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=40))
def test_joined_deltas_of_any_tokens_equal_the_full_decode(ids: list[int]) -> None:
    detokenizer = Detokenizer(TOKENIZER)
    deltas = [detokenizer.push(token_id) for token_id in ids]
    text = "".join(deltas) + detokenizer.flush()
    assert text == TOKENIZER.decode(ids) == OUTSIDE.decode(ids, skip_special_tokens=True)


@given(anything)
def test_joined_deltas_of_any_text_are_the_text_and_never_partial(text: str) -> None:
    for tokenizer in (TOKENIZER, BYTES_ONLY):
        detokenizer = Detokenizer(tokenizer)
        deltas = [detokenizer.push(token_id) for token_id in tokenizer.encode(text, add_special_tokens=False)]
        assert "".join(deltas) == text
        assert detokenizer.flush() == ""
        assert sum(delta.count("\ufffd") for delta in deltas) == text.count("\ufffd")


@given(st.lists(st.one_of(markers, anything), max_size=8).map("".join), st.sampled_from(["system", "user", "assistant", "tool"]))
def test_no_message_can_place_a_control_token(content: str, role: str) -> None:
    ids = TEMPLATE.encode((ChatMessage(role, content),))
    control = [token.id for token in TOKENIZER.control_tokens]
    assert [token_id for token_id in ids if token_id in control] == [START, END, START]
    # A result of a tool is quoted as JSON.
    assert (json.dumps(content, ensure_ascii=False) if role == "tool" else content) in TOKENIZER.decode(ids)


def first_complete(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition, naively: read character by character; the first complete match wins, of several the longest."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return text, None


stop_alphabet = st.text("ab", min_size=1, max_size=5)


@given(st.lists(st.text("abc", max_size=6), max_size=8), st.lists(stop_alphabet, min_size=1, max_size=4))
def test_stop_matching_does_not_depend_on_how_the_text_is_cut(deltas: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(delta) for delta in deltas) + matcher.flush()
    assert (shown, matcher.matched) == first_complete("".join(deltas), stops)


@given(st.lists(st.text("abc", max_size=6), max_size=8), st.lists(stop_alphabet, min_size=1, max_size=4))
def test_stop_matching_holds_back_no_more_than_it_must(deltas: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    seen = shown = ""
    for delta in deltas:
        seen += delta
        shown += matcher.push(delta)
        if matcher.matched is not None:
            return
        held = seen[len(shown) :]
        assert shown + held == seen
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
