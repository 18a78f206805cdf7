"""Tool calls read out of the text of an answer: whatever the pieces, the same calls and the same text."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.errors import EngineFailure
from tandem_client.tool_calls import CallDelta, CallForm, ToolCallReader

EVIL = {"x": 'a "quoted" \\ {brace} }\n</tool_call> <tool_call>', "deep": {"{": ["}", {}]}, "": "\\"}


def tagged(name: str, arguments: str, lead: str = "\n") -> str:
    return f'<tool_call>{lead}{{"name": "{name}", "arguments": {arguments}}}{lead}</tool_call>'


def read(pieces: list[str], form: CallForm = "tagged", of_text: str = "stop") -> tuple[str, list[tuple[str, str]], str]:
    """Text, calls (name, arguments), finish reason."""
    reader = ToolCallReader(form, "only")
    parts: list[str | CallDelta] = []
    for piece in pieces:
        parts += reader.push(piece)
    parts += reader.finish()
    calls: list[list[CallDelta]] = []
    for part in parts:
        if isinstance(part, CallDelta):
            if part.index == len(calls):
                assert part.id is not None
                assert part.id.startswith("call_")
                assert part.name is not None
                assert part.arguments == ""
                calls.append([])
            else:
                assert (part.id, part.name) == (None, None)
            calls[part.index].append(part)
    text = "".join(part for part in parts if isinstance(part, str))
    assert len({found[0].id for found in calls}) == len(calls)
    return (
        text,
        [(found[0].name or "", "".join(part.arguments for part in found)) for found in calls],
        reader.finish_reason(of_text),
    )


def read_every_way(text: str, form: CallForm = "tagged", of_text: str = "stop") -> tuple[str, list[tuple[str, str]], str]:
    """Whole, by character, and cut once at every place."""
    whole = read([text], form, of_text)
    assert read(list(text), form, of_text) == whole
    for cut in range(len(text)):
        assert read([text[:cut], text[cut:]], form, of_text) == whole
    return whole


def test_tagged_answer_with_text_and_two_calls() -> None:
    evil = json.dumps(EVIL)
    answer = f"Let me look. \n{tagged('f', evil)}\n{tagged('g', '{}')}\n"
    assert read_every_way(answer) == ("Let me look.", [("f", evil), ("g", "{}")], "tool_calls")


def test_tagged_answer_without_calls_is_its_text() -> None:
    for text in ("", " \n", "plain <tool", "a<b <tool_calls no", "  spaced  \n"):
        assert read_every_way(text) == (text, [], "stop")


def test_text_behind_a_call_is_kept() -> None:
    assert read_every_way(tagged("f", "{}") + "\nDone.") == ("\nDone.", [("f", "{}")], "tool_calls")


def test_list_answer() -> None:
    first, second = json.dumps(EVIL), '{"a": 1}'
    answer = f'[{{"name": "f", "arguments": {first}}}, {{"name": "g", "arguments": {second}}}]'
    assert read_every_way(answer, "list") == ("", [("f", first), ("g", second)], "tool_calls")


def test_arguments_answer_has_the_one_name() -> None:
    assert read_every_way(json.dumps(EVIL), "arguments") == ("", [("only", json.dumps(EVIL))], "tool_calls")


@pytest.mark.parametrize(
    ("form", "answer", "calls"),
    [
        ("tagged", tagged("f", '{"a": 1}')[:-14], [("f", '{"a": 1}')]),
        ("tagged", '<tool_call>\n{"name": "f", "arguments": {"a": "b', [("f", '{"a": "b')]),
        ("tagged", '<tool_call>\n{"name": "f", "argu', []),
        ("tagged", tagged("f", "{}") + '<tool_call>\n{"name"', [("f", "{}")]),
        ("list", '[{"name": "f", "arguments": {}', [("f", "{}")]),
        ("list", '[{"name": "f", "arguments": {}}, {"na', [("f", "{}")]),
        ("list", "[", []),
        ("arguments", '{"a": [{}, "', [("only", '{"a": [{}, "')]),
        ("arguments", "", []),
    ],
)
@pytest.mark.parametrize("of_text", ["length", "stop"])
def test_answer_that_is_cut_keeps_its_own_finish_reason(
    form: CallForm, answer: str, calls: list[tuple[str, str]], of_text: str
) -> None:
    assert read_every_way(answer, form, of_text) == ("", calls, of_text)


def test_complete_calls_in_an_answer_that_was_cut_end_with_length() -> None:
    assert read_every_way(tagged("f", "{}") + " and", of_text="length") == (" and", [("f", "{}")], "length")


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        ("tagged", "<tool_call>" + "x" * 300),
        ("tagged", '<tool_call>{"name": "f", "arguments": {}' + " , " * 100),
        ("list", '["name"' + "x" * 300),
        ("arguments", "[1]"),
        ("arguments", "{} more"),
    ],
)
def test_answer_that_breaks_its_form_is_a_failure_of_the_backend(form: CallForm, answer: str) -> None:
    for pieces in ([answer], list(answer)):
        with pytest.raises(EngineFailure, match="breaks its form"):
            read(pieces, form)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('"\\{}a', max_size=4), inner, max_size=3),
    max_leaves=8,
)
_objects = st.dictionaries(st.text('"\\{}<a', max_size=4), _json, max_size=3)


@given(st.lists(_objects, min_size=1, max_size=3), st.lists(st.integers(0, 400), max_size=12), st.sampled_from(["tagged", "list"]))
def test_any_arguments_in_any_pieces_come_back(values: list[dict[str, Any]], cuts: list[int], form: CallForm) -> None:
    arguments = [json.dumps(value, ensure_ascii=False) for value in values]
    if form == "tagged":
        answer = "hm\n" + "\n".join(tagged("f", each) for each in arguments)
    else:
        answer = "[" + ", ".join(f'{{"name": "f", "arguments": {each}}}' for each in arguments) + "]"
    edges = sorted({0, len(answer), *(cut for cut in cuts if cut < len(answer))})
    pieces = [answer[start:end] for start, end in pairwise(edges)]
    text, calls, reason = read(pieces, form)
    assert (text, reason) == ("hm" if form == "tagged" else "", "tool_calls")
    assert calls == [("f", each) for each in arguments]
