"""Twenty schemas as applications send them: extraction, function calls, classification, nested records, patterns, unions."""

from __future__ import annotations

from typing import Any

_TEXT = {"type": "string", "maxLength": 24}
_SHORT = {"type": "string", "maxLength": 10}
_FLAG = {"type": "boolean"}
_NUMBER = {"type": "number"}
_NODE = {"$ref": "#/$defs/node"}


def _int(low: int = 0, high: int = 1000) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


def _pattern(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern}


def _format(name: str) -> dict[str, Any]:
    return {"type": "string", "format": name}


def _one_of(*values: str) -> dict[str, Any]:
    return {"enum": list(values)}


def _list(items: dict[str, Any], low: int, high: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": low, "maxItems": high}


def _object(required: str | None = None, /, **properties: Any) -> dict[str, Any]:
    """``required``: names apart by blanks; None means all."""
    names = list(properties) if required is None else required.split()
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def _call(name: str, required: str | None = None, /, **arguments: Any) -> dict[str, Any]:
    return _object(name={"const": name}, arguments=_object(required, **arguments))


SCHEMAS: dict[str, dict[str, Any]] = {
    "weather call": _call("get_weather", city=_TEXT, unit=_one_of("celsius", "fahrenheit")),
    "search call": _call("search", "query", query=_TEXT, num_results=_int(1, 10)),
    "mail call": _call("send_mail", to=_pattern("^[a-z]{1,8}@ex\\.org$"), subject=_TEXT, body=_TEXT),
    "booking call": _call("book_table", day=_format("date"), people=_int(1, 12), inside=_FLAG),
    "calculation call": _call("calculate_area", shape=_one_of("circle", "square"), size={**_NUMBER, "minimum": 0}),
    "one of two calls": {"anyOf": [_call("start", id=_int()), _call("stop", id=_int(), force=_FLAG)]},
    "person": _object(name=_TEXT, age=_int(0, 150), city=_TEXT),
    "contact": _object(name=_TEXT, phone={"type": ["string", "null"], "pattern": "^[0-9]{3}-[0-9]{4}$"}),
    "sentiment": _object(label=_one_of("positive", "neutral", "negative"), score={**_NUMBER, "minimum": 0, "maximum": 1}),
    "topics": _object(topics=_list(_one_of("sport", "politics", "science", "art"), 1, 3)),
    "invoice": _object(number=_pattern("^INV-[0-9]{4}$"), lines=_list(_object(item=_SHORT, amount=_int()), 1, 3)),
    "address": _object(street=_TEXT, zip=_pattern("^[0-9]{5}$"), country=_one_of("DE", "FR", "US")),
    "event": _object("title begin", title=_TEXT, begin=_format("date-time"), online=_FLAG),
    "tree": {**_NODE, "$defs": {"node": _object("v", v=_int(), kids=_list(_NODE, 0, 2))}},
    "signed": _object("v", v=_int(-123, 42), w={"type": "integer", "exclusiveMinimum": 0}),
    "version": _object(version=_pattern("^\\d{1,2}\\.\\d{1,2}\\.\\d{1,2}$"), id=_format("uuid")),
    "point": {"type": "array", "prefixItems": [_NUMBER, _NUMBER], "items": False, "minItems": 2},
    "scores": {"type": "object", "properties": {"a": _int(), "b": _int()}, "required": ["a"], "additionalProperties": _int()},
    "answer": _object(reason=_TEXT, answer={"anyOf": [_FLAG, _int(), {"type": "null"}]}),
    "steps": _object("steps", steps=_list(_object(do=_SHORT, done=_FLAG), 2, 4), next=_SHORT),
}
"""Name -> schema. What nests or repeats without end (``tree``, ``scores``, digits of a number) may be cut by a limit."""
