"""Chat messages: what is legal, what is refused and under which name."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.errors import InvalidRequest, TandemError, Unsupported
from tandem.text.messages import ChatMessage, parse_messages


def call(call_id: str, arguments: object = '{"x": 1}') -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}


def calling(*calls: object, role: str = "assistant") -> list[dict[str, Any]]:
    return [{"role": role, "content": None, "tool_calls": list(calls)}]


def test_messages_of_every_role_are_parsed() -> None:
    messages = parse_messages(
        [
            {"role": "system", "content": "s"},
            {"role": "developer", "content": "d"},
            {"role": "user", "content": "u", "name": "ann"},
            {"role": "assistant", "content": "a", "tool_calls": None, "refusal": None, "annotations": []},
            {"role": "assistant", "content": None, "tool_calls": [call("c1")]},
            {"role": "tool", "content": "t", "tool_call_id": "c1"},
        ]
    )
    assert [message.role for message in messages] == ["system", "system", "user", "assistant", "assistant", "tool"]
    assert messages[2].to_template() == {"role": "user", "content": "u", "name": "ann"}
    function = {"name": "f", "arguments": {"x": 1}}
    calls = [{"id": "c1", "type": "function", "function": function}]
    assert messages[4].to_template() == {"role": "assistant", "content": "", "tool_calls": calls}
    assert messages[5].to_template() == {"role": "tool", "content": "t", "tool_call_id": "c1"}


def test_text_parts_are_joined_by_line_feeds() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "text", "text": "b"}]
    assert parse_messages([{"role": "user", "content": parts}])[0].content == "a\n\nb"


@pytest.mark.parametrize("role", ["user", "system"])
def test_lone_message_is_legal_and_may_be_empty(role: str) -> None:
    assert parse_messages([{"role": role, "content": ""}])[0].content == ""


@pytest.mark.parametrize(
    ("value", "error", "field"),
    [
        ([], InvalidRequest, "messages"),
        (None, InvalidRequest, "messages"),
        ({"role": "user", "content": "x"}, InvalidRequest, "messages"),
        (["hi"], InvalidRequest, "messages[0]"),
        ([{"content": "x"}], InvalidRequest, "messages[0].role"),
        ([{"role": "root", "content": "x"}], InvalidRequest, "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], InvalidRequest, "messages[0].role"),
        ([{"role": "user"}], InvalidRequest, "messages[0].content"),
        ([{"role": "user", "content": 7}], InvalidRequest, "messages[0].content"),
        ([{"role": "user", "content": []}], InvalidRequest, "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], InvalidRequest, "messages[0].content[0]"),
        ([{"role": "user", "content": [{"text": "x"}]}], InvalidRequest, "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], InvalidRequest, "messages[0].content[0].text"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "x", "cache": 1}]}],
            InvalidRequest,
            "messages[0].content[0].cache",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "x"}}]}],
            Unsupported,
            "messages[0].content[1].type",
        ),
        ([{"role": "user", "content": "x"}, {"role": "user", "content": "a\udfff"}], InvalidRequest, "messages[1].content"),
        ([{"role": "user", "content": "x", "name": 3}], InvalidRequest, "messages[0].name"),
        ([{"role": "user", "content": "x", "name": "\ud800"}], InvalidRequest, "messages[0].name"),
        ([{"role": "user", "content": "x", "extra": 1}], InvalidRequest, "messages[0].extra"),
        ([{"role": "assistant", "content": None}], InvalidRequest, "messages[0].content"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], InvalidRequest, "messages[0].content"),
        ([{"role": "assistant", "content": "x", "tool_calls": "f()"}], InvalidRequest, "messages[0].tool_calls"),
        (calling(call("1"), role="user"), InvalidRequest, "messages[0].tool_calls"),
        (calling("f()"), InvalidRequest, "messages[0].tool_calls[0]"),
        (calling({"id": "1"}), InvalidRequest, "messages[0].tool_calls[0].function"),
        (calling(call("")), InvalidRequest, "messages[0].tool_calls[0].id"),
        (calling({**call("1"), "type": "custom"}), Unsupported, "messages[0].tool_calls[0].type"),
        (calling({**call("1"), "index": 0}), InvalidRequest, "messages[0].tool_calls[0].index"),
        (calling(call("1", '{"x": 1')), InvalidRequest, "messages[0].tool_calls[0].function.arguments"),
        (calling(call("1", "[1]")), InvalidRequest, "messages[0].tool_calls[0].function.arguments"),
        (calling(call("1", {"x": 1})), InvalidRequest, "messages[0].tool_calls[0].function.arguments"),
        ([{"role": "tool", "content": "x", "tool_call_id": "1"}], InvalidRequest, "messages[0].tool_call_id"),
        ([{"role": "user", "content": "x", "tool_call_id": "1"}], InvalidRequest, "messages[0].tool_call_id"),
    ],
)
def test_faulty_messages_are_refused_naming_the_place(value: Any, error: type[TandemError], field: str) -> None:
    with pytest.raises(error) as caught:
        parse_messages(value)
    assert type(caught.value) is error
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{field}: ")


def test_image_part_is_refused_by_its_name() -> None:
    with pytest.raises(Unsupported, match="image_url"):
        parse_messages([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}])


def test_message_without_optional_fields_hands_only_role_and_content_to_the_template() -> None:
    assert ChatMessage("user", "x").to_template() == {"role": "user", "content": "x"}
