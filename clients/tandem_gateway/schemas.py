"""Request bodies as pydantic sees them: strict types, no unknown fields. Defaults are those of OpenAI's API.

Every error becomes one sentence with field, value and remedy (:func:`first_error`).
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError

from tandem.errors import InvalidRequest, quote
from tandem_gateway.errors import HttpError, invalid
from tandem_gateway.formats import ResponseFormat, Schema, StructuredOutputs
from tandem_gateway.strict import MAX_INT32, NonEmpty, StopString, Strict, Text, TokenCount
from tandem_gateway.tool_bodies import MAX_TOOLS, FunctionTool, MadeCall, ToolChoice

MAX_STOPS = 16


class TextPart(Strict):
    """A content part; only text is offered."""

    type: Literal["text"]
    text: Text


class Message(Strict):
    """One chat message. That roles and calls fit together is checked where the chat template is applied."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    # None only beside tool_calls.
    content: Text | Annotated[list[TextPart], Field(min_length=1)] | None = None
    name: Text | None = None
    tool_call_id: Text | None = None
    tool_calls: list[MadeCall] | None = None
    # Fields of an answer that clients send back with it: fine while empty.
    refusal: None = None
    function_call: None = None
    audio: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    reasoning_content: None = None


class StreamOptions(Strict):
    include_usage: bool | None = None
    # Padding against traffic analysis: off here, so only false is taken.
    include_obfuscation: Literal[False] | None = None


class Generation(Strict):
    """What chat and plain completions share."""

    model: Text
    max_tokens: TokenCount | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    metadata: dict[Annotated[str, Field(max_length=64)], Annotated[Text, Field(max_length=512)]] | None = Field(None, max_length=16)
    # Extras with vLLM's names.
    top_k: Annotated[int, Field(ge=-1, le=MAX_INT32)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_INT32)] | None = None
    cache_salt: Annotated[Text, Field(min_length=1, max_length=512)] | None = None
    # What the answer must match: OpenAI's field, vLLM's, and vLLM's of before.
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: NonEmpty | None = None
    guided_choice: Annotated[list[NonEmpty], Field(min_length=1)] | None = None
    guided_grammar: NonEmpty | None = None


class ChatBody(Generation):
    messages: Annotated[list[Message], Field(min_length=1)]
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


class CompletionBody(Generation):
    prompt: NonEmpty | Annotated[list[NonEmpty], Field(min_length=1)]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None


BodyT = TypeVar("BodyT", bound=Generation)


def validate(schema: type[BodyT], payload: dict[str, Any]) -> BodyT:
    """The payload as ``schema``. Raises: InvalidRequest or HttpError 400 for the first wrong field."""
    try:
        return schema.model_validate(payload)
    except ValidationError as error:
        raise first_error(error, payload) from None


def first_error(error: ValidationError, payload: dict[str, Any]) -> InvalidRequest | HttpError:
    """One sentence of the many that pydantic has. An alternative of a union that got the type right explains best."""
    details = error.errors(include_url=False, include_context=True, include_input=False)
    best = max(details, key=lambda item: (len(_field_path(item["loc"], payload)), item["type"] not in _TYPE_ERRORS))
    path = _field_path(best["loc"], payload)
    name = _dotted(path)
    if best["type"] == "missing":
        parent = _dotted(path[:-1]) or "the body"
        return HttpError(400, "missing_field", f"{name}: missing; {parent} needs it", field=quote(name))
    if best["type"] == "extra_forbidden":
        return HttpError(
            400, "unknown_field", f"{quote(name)}: this server does not know the field; leave it out", field=quote(name)
        )
    # As JSON, so that "8" and 8 look different.
    return invalid(name, json.dumps(_lookup(payload, path), ensure_ascii=False), _remedy(best))


_TYPE_ERRORS = frozenset(
    {"string_type", "list_type", "dict_type", "int_type", "float_type", "bool_type", "none_required", "model_type"}
)


def _field_path(loc: tuple[int | str, ...], payload: Any) -> tuple[int | str, ...]:
    """The steps of pydantic's location that are places in the payload; it also names branches of unions.

    The last step may be a key that is not there (missing).
    """
    path: list[int | str] = []
    here = payload
    for position, step in enumerate(loc):
        is_key = isinstance(here, dict) and isinstance(step, str) and step in here
        is_index = isinstance(here, list) and isinstance(step, int) and step < len(here)
        if is_key or is_index:
            path.append(step)
            here = here[step]
        elif isinstance(here, dict) and position == len(loc) - 1 and step != "[key]":
            path.append(step)
    return tuple(path)


def _lookup(payload: Any, path: tuple[int | str, ...]) -> Any:
    for step in path:
        payload = payload[step]
    return payload


def _dotted(path: tuple[int | str, ...]) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def _remedy(detail: Any) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    for key, words in _BOUNDS.items():
        if key in context and kind.startswith(("greater_than", "less_than")):
            return (
                f"give a number {words} {context[key]:g}"
                if isinstance(context[key], float)
                else f"give a number {words} {context[key]}"
            )
    if kind in ("string_too_short", "too_short"):
        return "give at least one" + (" character" if kind.startswith("string") else "")
    if kind in ("string_too_long", "too_long"):
        return f"give at most {context['max_length']}" + (" characters" if kind.startswith("string") else "")
    if kind == "literal_error":
        return f"use {context['expected']}"
    if kind == "string_pattern_mismatch":
        return "use 1 to 64 letters, digits, _ and -"
    return _REMEDIES.get(kind, "see docs/api.md for what this field takes")


_BOUNDS = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}
_REMEDIES = {
    "string_type": "give a text",
    "string_unicode": "give a text that is valid Unicode",
    "value_error": "give a text that is valid Unicode (no lone surrogates)",
    "int_type": "give a whole number",
    "int_from_float": "give a whole number",
    "float_type": "give a number",
    "finite_number": "give a finite number",
    "bool_type": "give true or false",
    "list_type": "give a list",
    "dict_type": "give an object",
    "model_type": "give an object",
    "none_required": "leave it out: this version does not offer it",
}
