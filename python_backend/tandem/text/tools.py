"""Tools in a prompt: what a caller offers, and the text that stands for tools where a chat template knows none.

One form of a call is used for every model, because it is the form that is read back from answers::

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

A template that writes this form itself (Qwen, Hermes and their descendants) gets tools, calls and results as they are. For any
other template (:func:`as_plain_messages`) the tools are described in the system turn, calls are written out in the assistant's
turns, and results become user turns. All of it is content of messages, so nothing in it can become a control token.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tandem.errors import InvalidRequest
from tandem.text.messages import ChatMessage

CALL_BEGIN, CALL_END = "<tool_call>", "</tool_call>"
_RESULT_BEGIN, _RESULT_END = "<tool_response>", "</tool_response>"

Tool = dict[str, Any]
"""``{"type": "function", "function": {"name": ..., "description": ..., "parameters": JSON Schema}}``, as templates expect it."""


def parse_tools(value: object, *, field: str = "tools") -> tuple[Tool, ...]:
    """Check a decoded JSON value. Says nothing about the schemas in it. Raises: InvalidRequest naming the place."""
    if not isinstance(value, list) or not value:
        raise InvalidRequest(field, value, "give a list of tools with at least one")
    for index, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequest(
                f"{field}[{index}]", tool, 'give {"type": "function", "function": {"name": ..., "parameters": ...}}'
            )
    return tuple(value)


def as_plain_messages(messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> tuple[ChatMessage, ...]:
    """The same conversation in system, user and assistant messages of text alone, for a template that knows no tools."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    plain: list[ChatMessage] = []
    is_result = False
    for message in messages:
        if message.role == "tool":
            result = _result_text(message, names.get(message.tool_call_id or ""))
            if is_result:  # several results in a row are one turn: many templates want the roles to alternate
                plain[-1] = replace(plain[-1], content=f"{plain[-1].content}\n{result}")
            else:
                plain.append(ChatMessage("user", result))
        else:
            plain.append(replace(message, content=_with_calls(message), tool_calls=()))
        is_result = message.role == "tool"
    if not tools:
        return tuple(plain)
    if plain[0].role == "system":
        return (replace(plain[0], content=f"{plain[0].content}\n\n{_preamble(tools)}"), *plain[1:])
    return (ChatMessage("system", _preamble(tools)), *plain)


def _preamble(tools: Iterable[Tool]) -> str:
    """docs/api.md shows this text."""
    functions = "\n".join(_json(tool["function"]) for tool in tools)
    return (
        f"You have these functions, one in each line as JSON; parameters is a JSON Schema of the arguments:\n{functions}\n"
        "To call a function, answer only with\n"
        f'{CALL_BEGIN}\n{{"name": the name of the function, "arguments": an object with its arguments}}\n{CALL_END}\n'
        f"Its result then comes between {_RESULT_BEGIN} and {_RESULT_END}. Call a function only when it helps to answer."
    )


def _with_calls(message: ChatMessage) -> str:
    calls = [f"{CALL_BEGIN}\n{_json({'name': call.name, 'arguments': call.arguments})}\n{CALL_END}" for call in message.tool_calls]
    return "\n".join([*([message.content] if message.content or not calls else []), *calls])


def _result_text(message: ChatMessage, name: str | None) -> str:
    # As JSON: a result that spells the end mark stays inside its string.
    result = {"content": message.content} if name is None else {"name": name, "content": message.content}
    return f"{_RESULT_BEGIN}\n{_json(result)}\n{_RESULT_END}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
