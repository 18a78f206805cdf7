"""Strict JSON of a caller, with a bound on its nesting so that walking it needs no more stack than we have."""

from __future__ import annotations

import re
from typing import Any

import orjson

from tandem.guided.errors import GuideError
from tandem.guided.limits import GuideLimits

# An unclosed string runs to the end, as it does for a parser.
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\Z|\\\Z)', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")


def parse_json(text: str, limits: GuideLimits) -> Any:
    """Raises: GuideError for text that is no JSON or nests deeper than ``max_json_depth``."""
    depth = _depth(text, limits.max_json_depth)
    if depth > limits.max_json_depth:
        raise GuideError("$", f"JSON nested {depth} deep", f"at most {limits.max_json_depth} levels are taken")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise GuideError("$", text, f"give valid JSON ({error})") from None


def _depth(text: str, enough: int) -> int:
    """Deepest nesting of brackets outside strings; 0 where there are no more than ``enough`` in all."""
    if text.count("{") + text.count("[") <= enough:
        return 0
    deepest = depth = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        if bracket in "[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    return deepest
