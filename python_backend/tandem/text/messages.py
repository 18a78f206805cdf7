"""Chat messages as callers send them (OpenAI form), checked before any template sees them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from tandem.errors import InvalidRequest, Unsupported

Role = Literal["system", "user", "assistant", "tool"]

_ROLES = (*get_args(Role), "developer")
_KEYS = frozenset({"role", "content", "name", "tool_call_id"})
# Fields of an answer that clients send back as they got it: fine while empty, else they carry something that would be lost.
_ANSWER_KEYS = frozenset({"tool_calls", "function_call", "refusal", "audio", "annotations", "reasoning_content"})
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One checked message. ``content`` is plain text: text parts are joined by line feeds; ``developer`` has become ``system``."""

    role: Role
    content: str
    name: str | None = None
    tool_call_id: str | None = None

    def to_template(self) -> dict[str, str]:
        """The form in which chat templates expect a message."""
        fields = {"role": self.role, "content": self.content, "name": self.name, "tool_call_id": self.tool_call_id}
        return {key: value for key, value in fields.items() if value is not None}


def parse_messages(value: object, *, field: str = "messages") -> tuple[ChatMessage, ...]:
    """Check a decoded JSON value. A list with only a system message and an empty user message are both legal.

    Raises: InvalidRequest naming the place (``messages[1].content``), Unsupported for content other than text.
    """
    if not isinstance(value, list):
        raise InvalidRequest(field, value, "give a list of messages")
    if not value:
        raise InvalidRequest(field, "[]", "give at least one message")
    return tuple(_parse_message(entry, f"{field}[{index}]") for index, entry in enumerate(value))


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
    return ChatMessage(
        role="system" if role == "developer" else cast("Role", role),
        content=_parse_content(message.get("content"), f"{field}.content"),
        name=_parse_optional_text(message.get("name"), f"{field}.name"),
        tool_call_id=_parse_optional_text(message.get("tool_call_id"), f"{field}.tool_call_id"),
    )


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
