"""A JSON Schema before it is compiled: every keyword well-formed, every reference local, every size within its limit.

Only schemas that the root reaches are looked at, as the compiler does. What is found here is refused with its JSON path; whether
a keyword is supported is the compiler's to say (:mod:`tandem.guided.llg_errors` finds the path of what it refuses).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from tandem.guided.errors import GuideError, UnsupportedGuide, child
from tandem.guided.limits import GuideLimits
from tandem.guided.regex import pattern_size

TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")

_ONE = ("items", "additionalItems", "additionalProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties")
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_FORBIDDEN = {
    "x-guidance": "options of the compiler are not the caller's to set; remove it",
}
# Keywords of older drafts that constrain. The compiler reads later drafts only and would pass over them in silence.
_OLD_DRAFTS = ("divisibleBy", "disallow", "extends")


@dataclass
class ReachedSchema:
    """One schema the root reaches; ``value`` is an object or a boolean."""

    path: str
    value: Any
    target: ReachedSchema | None = None  # of $ref
    parts: dict[str, list[ReachedSchema]] = field(default_factory=dict)  # keyword -> the schemas it applies


class SchemaWalk:
    """All schemas that a root reaches, each once, checked. Raises in the constructor: GuideError, UnsupportedGuide."""

    def __init__(self, root: Any, limits: GuideLimits, path: str = "$") -> None:
        self._root_value = root
        self._limits = limits
        self._by_id: dict[int, ReachedSchema] = {}
        self._open: list[ReachedSchema] = []
        self._num_literals = 0
        self._pattern_size = 0
        self._multiple = 1
        self._num_properties = 0
        self._anchors: dict[str, Any] | None = None
        self.root = self._reach(root, path)
        while self._open:
            self._check(self._open.pop())

    def __iter__(self) -> Iterator[ReachedSchema]:
        return iter(self._by_id.values())

    def _reach(self, value: Any, path: str) -> ReachedSchema:
        if not isinstance(value, dict | bool):
            raise GuideError(path, value, "a schema is an object, true or false")
        key = id(value) if isinstance(value, dict) else -len(self._by_id) - 1  # booleans are all one object
        found = self._by_id.get(key)
        if found is None:
            if len(self._by_id) >= self._limits.max_schema_nodes:
                raise GuideError(path, "a schema", f"at most {self._limits.max_schema_nodes} schemas are taken in one guide")
            found = self._by_id[key] = ReachedSchema(path, value)
            self._open.append(found)
        return found

    def _check(self, schema: ReachedSchema) -> None:
        if isinstance(schema.value, bool):
            return
        for keyword, value in schema.value.items():
            check = _CHECKS.get(keyword)
            if check is not None:
                check(self, schema, keyword, value)

    # --- one method per kind of keyword -----------------------------------------------------------------------------------

    def one(self, schema: ReachedSchema, keyword: str, value: Any) -> None:
        if keyword == "items" and isinstance(value, list):  # drafts before 2020-12: one schema per position
            self.several(schema, keyword, value)
            return
        schema.parts[keyword] = [self._reach(value, child(schema.path, keyword))]

    def several(self, schema: ReachedSchema, keyword: str, value: Any) -> None:
        path = child(schema.path, keyword)
        if not isinstance(value, list):
            raise GuideError(path, value, "give an array of schemas")
        if not value and keyword in ("anyOf", "oneOf", "allOf"):
            raise GuideError(path, "[]", "give at least one schema")
        if len(value) > self._limits.max_properties:
            raise GuideError(path, f"{len(value)} schemas", f"at most {self._limits.max_properties} are taken in one list")
        schema.parts[keyword] = [self._reach(part, child(path, index)) for index, part in enumerate(value)]

    def named(self, schema: ReachedSchema, keyword: str, value: Any) -> None:
        path = child(schema.path, keyword)
        if not isinstance(value, dict):
            raise GuideError(path, value, "give an object of schemas")
        if len(value) > self._limits.max_properties:
            raise GuideError(path, f"{len(value)} properties", f"at most {self._limits.max_properties} are taken in one object")
        if keyword == "patternProperties" and len(value) > self._limits.max_pattern_properties:
            raise GuideError(
                path, f"{len(value)} patterns", f"at most {self._limits.max_pattern_properties} are taken in one object"
            )
        self._num_properties += len(value)
        if self._num_properties > self._limits.max_all_properties:
            remedy = f"at most {self._limits.max_all_properties} are taken in one guide"
            raise GuideError(path, f"{self._num_properties} properties", remedy)
        for name in value:
            self._count_literal(path, name)
            if keyword == "patternProperties":
                self._count_pattern(path, name)
        schema.parts[keyword] = [self._reach(part, child(path, name)) for name, part in value.items()]

    def count(self, schema: ReachedSchema, keyword: str, value: Any) -> None:
        is_whole = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value == math.floor(value)
        if not is_whole:
            raise GuideError(child(schema.path, keyword), value, "give a whole number of at least 0")
        if value > self._limits.max_repetition:
            raise GuideError(child(schema.path, keyword), value, f"at most {self._limits.max_repetition} is taken")
        if keyword.startswith("max"):
            _check_range(schema, keyword, value)

    def number(self, schema: ReachedSchema, keyword: str, value: Any) -> None:
        path = child(schema.path, keyword)
        if isinstance(value, bool) and keyword.startswith("exclusive"):
            remedy = "the form of draft 4 is not supported; give the bound itself as a number"
            raise UnsupportedGuide(path, str(value).lower(), remedy)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise GuideError(path, value, "give a number")
        if keyword == "multipleOf":
            self._count_multiple(path, value)

    def text(self, schema: ReachedSchema, keyword: str, value: Any) -> None:
        if not isinstance(value, str):
            raise GuideError(child(schema.path, keyword), value, "give a string")
        if keyword == "pattern":
            self._count_pattern(child(schema.path, keyword), value)

    def type(self, schema: ReachedSchema, keyword: str, value: Any) -> None:
        names = value if isinstance(value, list) else [value]
        for name in names:
            if name not in TYPES:
                raise GuideError(child(schema.path, keyword), name, f"use {', '.join(TYPES[:-1])} or {TYPES[-1]}")
        if not names:
            raise GuideError(child(schema.path, keyword), "[]", "name at least one type")

    def required(self, schema: ReachedSchema, keyword: str, value: Any) -> None:
        path = child(schema.path, keyword)
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise GuideError(path, value, "give an array of property names")
        if len(value) > self._limits.max_properties:
            raise GuideError(path, f"{len(value)} names", f"at most {self._limits.max_properties} are taken")
        for name in value:
            self._count_literal(path, name)

    def literals(self, schema: ReachedSchema, keyword: str, value: Any) -> None:
        path = child(schema.path, keyword)
        if keyword == "enum" and (not isinstance(value, list) or not value):
            raise GuideError(path, value, "give an array with at least one value")
        for literal in value if keyword == "enum" else [value]:
            self._count_value(path, literal)

    def reference(self, schema: ReachedSchema, keyword: str, value: Any) -> None:
        path = child(schema.path, keyword)
        if not isinstance(value, str):
            raise GuideError(path, value, "give a string")
        schema.target = self._reach(self._resolve(path, value), value)

    def forbidden(self, schema: ReachedSchema, keyword: str, value: Any) -> None:
        raise GuideError(child(schema.path, keyword), value, _FORBIDDEN[keyword])

    def old(self, schema: ReachedSchema, keyword: str, value: Any) -> None:
        raise UnsupportedGuide(child(schema.path, keyword), value, "this keyword of an old draft is not supported")

    # --- helpers ----------------------------------------------------------------------------------------------------------

    def _resolve(self, path: str, reference: str) -> Any:
        """The schema a local reference points to: ``#``, a JSON pointer, or an anchor; behind the root's own ``$id`` too."""
        base, _, fragment = reference.partition("#")
        own = self._root_value.get("$id") or self._root_value.get("id") if isinstance(self._root_value, dict) else None
        if base and not (isinstance(own, str) and base == own.partition("#")[0]):
            raise GuideError(path, reference, "only references within the schema are followed (#/$defs/name); nothing is fetched")
        if fragment and not fragment.startswith("/"):
            return self._anchor(path, reference, fragment)
        value = self._root_value
        for part in fragment.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and key in value:
                value = value[key]
            elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            else:
                raise GuideError(path, reference, "there is nothing at this place in the schema")
        return value

    def _anchor(self, path: str, reference: str, name: str) -> Any:
        if self._anchors is None:
            self._anchors = dict(_anchors(self._root_value))
        if name not in self._anchors:
            raise GuideError(path, reference, "there is no $anchor of this name in the schema")
        return self._anchors[name]

    def _count_value(self, path: str, value: Any) -> None:
        """A literal value: it and all it is made of."""
        left = [value]
        while left:
            part = left.pop()
            if isinstance(part, dict):
                left += [*part, *part.values()]
            elif isinstance(part, list):
                left += part
            self._count_literal(path, part if isinstance(part, str) else "")

    def _count_literal(self, path: str, text: str) -> None:
        self._num_literals += 1
        if self._num_literals > self._limits.max_literals:
            remedy = f"at most {self._limits.max_literals} names and literal values are taken in one guide"
            raise GuideError(path, f"{self._num_literals} values", remedy)
        if len(text.encode("utf-8", "surrogatepass")) > self._limits.max_literal_bytes:
            raise GuideError(path, text, f"at most {self._limits.max_literal_bytes} bytes are taken in one literal")

    def _count_multiple(self, path: str, value: float) -> None:
        if value <= 0:
            raise GuideError(path, value, "give a number above 0")
        _, digits, _ = Decimal(repr(value)).normalize().as_tuple()
        self._multiple = math.lcm(self._multiple, int("".join(map(str, digits))))
        if self._multiple > self._limits.max_multiple:
            remedy = f"the least common multiple of all multipleOf, without decimal point, may be {self._limits.max_multiple}"
            raise GuideError(path, value, remedy)

    def _count_pattern(self, path: str, pattern: str) -> None:
        self._pattern_size += pattern_size(pattern, path, self._limits)
        if self._pattern_size > self._limits.max_pattern_size:
            remedy = f"all patterns together, repetitions written out, may be {self._limits.max_pattern_size} large"
            raise GuideError(path, pattern, remedy)


_Check = Callable[[SchemaWalk, ReachedSchema, str, Any], None]
_CHECKS: dict[str, _Check] = {
    **dict.fromkeys(_ONE, SchemaWalk.one),
    **dict.fromkeys(_LISTS, SchemaWalk.several),
    **dict.fromkeys(_MAPS, SchemaWalk.named),
    **dict.fromkeys(_COUNTS, SchemaWalk.count),
    **dict.fromkeys(_NUMBERS, SchemaWalk.number),
    **dict.fromkeys(("pattern", "format"), SchemaWalk.text),
    "type": SchemaWalk.type,
    "required": SchemaWalk.required,
    "enum": SchemaWalk.literals,
    "const": SchemaWalk.literals,
    "$ref": SchemaWalk.reference,
    **dict.fromkeys(_FORBIDDEN, SchemaWalk.forbidden),
    **dict.fromkeys(_OLD_DRAFTS, SchemaWalk.old),
}


def _check_range(schema: ReachedSchema, keyword: str, high: float) -> None:
    """A lower bound above its upper one leaves no value."""
    low = schema.value.get(keyword.replace("max", "min"))
    if isinstance(low, int | float) and low > high:
        lower = child(schema.path, keyword.replace("max", "min"))
        raise GuideError(lower, low, f"it is above {keyword}, {high}: no value is valid")


def _anchors(root: Any) -> Iterator[tuple[str, Any]]:
    left = [root]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            if isinstance(value.get("$anchor"), str):
                yield value["$anchor"], value
            left += value.values()
        elif isinstance(value, list):
            left += value
