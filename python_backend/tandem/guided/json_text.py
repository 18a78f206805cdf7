"""Strict JSON of a caller, with a bound on its nesting so that walking it needs no more stack than we have."""

from __future__ import annotations

from typing import Any

import orjson

from tandem.guided.errors import GuideError
from tandem.guided.limits import GuideLimits


def parse_json(text: str, limits: GuideLimits) -> Any:
    """Raises: GuideError for text that is no JSON or nests deeper than ``max_json_depth``."""
    depth = _depth(text)
    if depth > limits.max_json_depth:
        raise GuideError("$", f"JSON nested {depth} deep", f"at most {limits.max_json_depth} levels are taken")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise GuideError("$", text, f"give valid JSON ({error})") from None


def _depth(text: str) -> int:
    """Deepest nesting of brackets outside strings."""
    deepest = depth = position = 0
    while position < len(text):
        char = text[position]
        if char == '"':
            position = _string_end(text, position)
            continue
        if char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth -= 1
        position += 1
    return deepest


def _string_end(text: str, start: int) -> int:
    position = start + 1
    while True:
        quote, escape = text.find('"', position), text.find("\\", position)
        if quote < 0:
            return len(text)
        if 0 <= escape < quote:
            position = escape + 2
        else:
            return quote + 1
