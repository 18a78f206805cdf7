"""Chat messages as callers send them (OpenAI form), checked before any template sees them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import orjson

from tandem.errors import InvalidRequest, Unsupported

Role = Literal["system", "user", "assistant", "tool"]

_ROLES = (*get_args(Role), "developer")
_KEYS = frozenset({"role", "content", "name", "tool_call_id", "tool_calls"})
# Fields of an answer that clients send back as they got it: fine while empty, else they carry something that would be lost.
_ANSWER_KEYS = frozenset({"function_call", "refusal", "audio", "annotations", "reasoning_content"})
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class MessageToolCall:
    """A call that an assistant message made. ``arguments`` is the decoded JSON object."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One checked message. ``content`` is plain text: text parts are joined by line feeds; ``developer`` has become ``system``."""

    role: Role
    content: str
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[MessageToolCall, ...] = ()

    def to_template(self) -> dict[str, Any]:
        """The form in which chat templates expect a message: arguments of calls as objects, not as JSON text."""
        fields: dict[str, Any] = {"role": self.role, "content": self.content, "name": self.name, "tool_call_id": self.tool_call_id}
        if self.tool_calls:
            fields["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return {key: value for key, value in fields.items() if value is not None}


def parse_messages(value: object, *, field: str = "messages") -> tuple[ChatMessage, ...]:
    """Check a decoded JSON value. A list with only a system message and an empty user message are both legal.

    Raises: InvalidRequest naming the place (``messages[1].content``), Unsupported for content other than text.
    """
    if not isinstance(value, list):
        raise InvalidRequest(field, value, "give a list of messages")
    if not value:
        raise InvalidRequest(field, "[]", "give at least one message")
    messages = tuple(_parse_message(entry, f"{field}[{index}]") for index, entry in enumerate(value))
    _check_answered_calls(messages, field)
    return messages


def _check_answered_calls(messages: Iterable[ChatMessage], field: str) -> None:
    """A tool message that names a call answers one that was made before it."""
    known: set[str] = set()
    for index, message in enumerate(messages):
        known.update(call.id for call in message.tool_calls)
        if message.tool_call_id is not None and message.tool_call_id not in known:
            raise InvalidRequest(
                f"{field}[{index}].tool_call_id",
                message.tool_call_id,
                "give the id of a tool call of an assistant message before it",
            )


def _parse_message(value: object, field: str) -> ChatMessage:
    if not isinstance(value, dict):
        raise InvalidRequest(field, value, "give an object with role and content")
    message = cast("dict[str, Any]", value)
    for key, entry in message.items():
        if key in _ANSWER_KEYS and entry:
            raise Unsupported(f"{field}.{key}", entry, "only text can be sent; leave it out")
        if key not in _KEYS and key not in _ANSWER_KEYS:
            raise InvalidRequest(f"{field}.{key}", entry, f"unknown field; known are {', '.join(sorted(_KEYS))}")
    role = message.get("role")
    if role not in _ROLES:
        raise InvalidRequest(f"{field}.role", role, f"use one of {', '.join(_ROLES)}")
    tool_calls = _parse_tool_calls(message.get("tool_calls"), role, f"{field}.tool_calls")
    content = message.get("content")
    tool_call_id = _parse_optional_text(message.get("tool_call_id"), f"{field}.tool_call_id")
    if tool_call_id is not None and role != "tool":
        raise InvalidRequest(f"{field}.tool_call_id", tool_call_id, "only a message of the role tool answers a call; leave it out")
    return ChatMessage(
        role="system" if role == "developer" else cast("Role", role),
        content="" if content is None and tool_calls else _parse_content(content, f"{field}.content"),
        name=_parse_optional_text(message.get("name"), f"{field}.name"),
        tool_call_id=tool_call_id,
        tool_calls=tool_calls,
    )


def _parse_tool_calls(value: object, role: object, field: str) -> tuple[MessageToolCall, ...]:
    if value is None or value == []:
        return ()
    if not isinstance(value, list):
        raise InvalidRequest(field, value, "give a list of tool calls")
    if role != "assistant":
        raise InvalidRequest(field, value, "only assistant messages make tool calls; leave it out")
    return tuple(_parse_tool_call(call, f"{field}[{index}]") for index, call in enumerate(value))


def _parse_tool_call(value: object, field: str) -> MessageToolCall:
    call = _object(value, field, ("id", "type", "function"))
    if call.get("type", "function") != "function":
        raise Unsupported(f"{field}.type", call["type"], "only function calls are known")
    function = _object(call.get("function"), f"{field}.function", ("name", "arguments"))
    text = _parse_text(function.get("arguments"), f"{field}.function.arguments")
    try:
        arguments = orjson.loads(text)
    except orjson.JSONDecodeError:
        arguments = None
    if not isinstance(arguments, dict):
        raise InvalidRequest(f"{field}.function.arguments", text, "give the text of a JSON object")
    return MessageToolCall(
        _parse_text(call.get("id"), f"{field}.id"), _parse_text(function.get("name"), f"{field}.function.name"), arguments
    )


def _object(value: object, field: str, keys: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(field, value, f"give an object with {', '.join(keys)}")
    for key in value:
        if key not in keys:
            raise InvalidRequest(f"{field}.{key}", value[key], f"unknown field; known are {', '.join(keys)}")
    return cast("dict[str, Any]", value)


def _parse_text(value: object, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(field, value, "give a text")
    return _checked_text(value, field)


def _parse_content(value: object, field: str) -> str:
    if isinstance(value, str):
        return _checked_text(value, field)
    if not isinstance(value, list):
        raise InvalidRequest(field, value, "give a string or a list of text parts")
    if not value:
        raise InvalidRequest(field, "[]", "give at least one text part")
    return "\n".join(_parse_part(part, f"{field}[{index}]") for index, part in enumerate(value))


def _parse_part(value: object, field: str) -> str:
    if not isinstance(value, dict):
        raise InvalidRequest(field, value, 'give an object like {"type": "text", "text": "..."}')
    part = cast("dict[str, Any]", value)
    kind = part.get("type")
    if kind != "text":
        if isinstance(kind, str):
            raise Unsupported(f"{field}.type", kind, "this model reads text only; use parts of type text")
        raise InvalidRequest(f"{field}.type", kind, "give the type of the part; only text is read here")
    for key in part:
        if key not in ("type", "text"):
            raise InvalidRequest(f"{field}.{key}", part[key], "unknown field; a text part has type and text")
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequest(f"{field}.text", text, "give a string")
    return _checked_text(text, f"{field}.text")


def _parse_optional_text(value: object, field: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidRequest(field, value, "give a string")
    return _checked_text(value, field)


def _checked_text(text: str, field: str) -> str:
    if not text.isascii() and _LONE_SURROGATE.search(text):
        raise InvalidRequest(field, text, "send valid Unicode text without lone surrogates")
    return text
