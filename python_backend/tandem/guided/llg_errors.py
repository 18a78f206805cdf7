"""llguidance's refusals in our words, with the place that it does not name."""

from __future__ import annotations

import re
from collections.abc import Callable

from tandem.guided.errors import GuideError, UnsupportedGuide, child
from tandem.guided.schema_walk import ReachedSchema, SchemaWalk

_KEYS = re.compile(r'^Unimplemented keys: \["([^"]+)"')
_FORMAT = re.compile(r"^Unknown format: (.*)")
_ONE_OF = re.compile(r"^oneOf constraints are not supported")
_NUM_PROPERTIES = re.compile(r"^min/maxProperties")
_REGEX = re.compile(r"regex parse error:|invalid regex|lookaround")
_UNSATISFIABLE = re.compile(r"^Unsatisfiable schema: (.*)")


def schema_error(message: str, walk: SchemaWalk) -> GuideError | UnsupportedGuide:
    """What the compiler said about a schema, as an error for the caller."""
    if match := _KEYS.search(message):
        keyword = match[1]
        found = _find(walk, lambda schema: keyword in schema.value)
        return UnsupportedGuide(child(found.path, keyword), found.value.get(keyword), f"the keyword {keyword} is not supported")
    if match := _FORMAT.search(message):
        name = match[1]
        found = _find(walk, lambda schema: schema.value.get("format") == name)
        return UnsupportedGuide(child(found.path, "format"), name, "this format is not supported; use pattern")
    if _ONE_OF.search(message):
        found = _find(walk, lambda schema: "oneOf" in schema.value)
        return UnsupportedGuide(
            child(found.path, "oneOf"), "schemas that may overlap", "only disjoint ones are supported; use anyOf"
        )
    if _NUM_PROPERTIES.search(message):
        found = _find(walk, lambda schema: "minProperties" in schema.value or "maxProperties" in schema.value)
        keyword = "minProperties" if "minProperties" in found.value else "maxProperties"
        remedy = "supported only where all declared properties are required"
        return UnsupportedGuide(child(found.path, keyword), found.value.get(keyword), remedy)
    if _REGEX.search(message):
        return _pattern_error(message, walk)
    if match := _UNSATISFIABLE.search(message):
        return GuideError(walk.root.path, "the schema", f"no value is valid: {_one_line(match[1])}")
    return UnsupportedGuide(walk.root.path, "the schema", f"it cannot be compiled: {_one_line(message)}")


def pattern_reason(message: str) -> str:
    """The compiler's last line says what is wrong with a pattern."""
    lines = [line.strip() for line in message.splitlines() if line.strip().startswith("error:")]
    if lines:
        return lines[-1].removeprefix("error:").strip()
    match = re.search(r"(look\w+ not supported[^;]*)", message)
    return match[1] if match else _one_line(message)


def _pattern_error(message: str, walk: SchemaWalk) -> UnsupportedGuide:
    reason = pattern_reason(message)
    patterns = [
        (child(schema.path, "pattern"), schema.value["pattern"])
        for schema in walk
        if isinstance(schema.value, dict) and isinstance(schema.value.get("pattern"), str)
    ]
    patterns += [
        (child(child(schema.path, "patternProperties"), name), name)
        for schema in walk
        if isinstance(schema.value, dict)
        for name in schema.value.get("patternProperties", ())
    ]
    # The compiler quotes the pattern it failed at.
    path, pattern = next(((path, text) for path, text in patterns if text and text in message), (walk.root.path, "a pattern"))
    return UnsupportedGuide(path, pattern, f"the pattern cannot be used: {reason}")


def _find(walk: SchemaWalk, fits: Callable[[ReachedSchema], bool]) -> ReachedSchema:
    return next((schema for schema in walk if isinstance(schema.value, dict) and fits(schema)), walk.root)


def _one_line(message: str) -> str:
    return " ".join(message.split())[:200]
