"""Forty guides made to cost a compiler time or memory. Each must be refused, or compiled within the budget of RELIABILITY S1."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from tandem.errors import InvalidRequest
from tandem.guided.gate import GuideGate
from tandem.types import Guide, GuideType

MAX_COMPILE_MS = 100.0
MAX_COMPILE_MB = 64.0


def bombs() -> dict[str, Guide]:
    """Name -> guide."""
    schemas = {name: Guide(GuideType.JSON_SCHEMA, _text(schema)) for name, schema in _schemas().items()}
    regexes = {name: Guide(GuideType.REGEX, pattern) for name, pattern in _regexes().items()}
    grammars = {name: Guide(GuideType.EBNF_GRAMMAR, text) for name, text in _grammars().items()}
    choices = {
        "100,000 choices": Guide(GuideType.CHOICE, json.dumps([f"choice {number}" for number in range(100_000)])),
        "2,000 long choices": Guide(GuideType.CHOICE, json.dumps([f"{number:04d}" + "x" * 100 for number in range(2000)])),
    }
    return {**schemas, **regexes, **grammars, **choices}


def _text(schema: Any) -> str:
    return schema if isinstance(schema, str) else json.dumps(schema)


def _schemas() -> Mapping[str, Any]:
    string, integer = {"type": "string"}, {"type": "integer"}
    return {
        "self reference": {"$ref": "#"},
        "references in a ring": _chain(20, lambda i: {"$ref": f"#/$defs/d{(i + 1) % 20}"}),
        "a list of itself, at least one": {"type": "array", "minItems": 1, "items": {"$ref": "#"}},
        "a required member that is the whole": {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}},
        "3,000 references in a chain": _chain(3000, lambda i: {"$ref": f"#/$defs/d{i + 1}"} if i < 2999 else string),
        "anyOf of two, 20 deep": _chain(21, lambda i: {"anyOf": [_member("a", i + 1), _member("b", i + 1)]} if i < 20 else string),
        "allOf of anyOf, 2^20 ways": {"allOf": [{"anyOf": [{"maxLength": i}, {"minLength": i}]} for i in range(1, 21)]},
        "anyOf in allOf through references": _chain(
            21, lambda i: {"allOf": [{"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, integer]}] * 2} if i < 20 else string
        ),
        "oneOf of 200 objects": {"oneOf": [{"type": "object", "properties": {f"p{i}": string}} for i in range(200)]},
        "anyOf of 5,000": {"anyOf": [{"const": i} for i in range(5000)]},
        "maxItems 1e9": {"type": "array", "items": integer, "maxItems": 10**9},
        "minItems 1e9": {"type": "array", "items": integer, "minItems": 10**9},
        "minLength 1e9": {"type": "string", "minLength": 10**9},
        "maxItems 100,000": {"type": "array", "items": {"type": "string", "pattern": "^a+$"}, "maxItems": 100_000},
        "maxLength 100,000 of a pattern": {"type": "string", "pattern": "^(a|b)*c$", "maxLength": 100_000},
        "nested counted patterns": {"type": "string", "pattern": "^((a{100}){100}){100}$"},
        "a thousand patterns": {"anyOf": [{"type": "string", "pattern": f"^a{{{i}}}b$"} for i in range(1000)]},
        "100,000 enum values": {"enum": [f"value {number}" for number in range(100_000)]},
        "2,000 enum values": {"enum": [f"value {number}" for number in range(2000)]},
        "a literal of 100,000 signs": {"const": "x" * 100_000},
        "2,000 properties": {"type": "object", "properties": {f"property{i}": string for i in range(2000)}},
        "250 optional properties": {"type": "object", "properties": {f"property{i}": string for i in range(250)}},
        "250 optional properties, three deep": _nested_objects(3),
        "objects nested 5,000 deep": '{"items":' * 5000 + "{}" + "}" * 5000,
        "brackets nested 100,000 deep": "[" * 100_000,
        "a text of 1 MB": {"description": "x" * 1_000_000},
        "50 patternProperties that overlap": {"type": "object", "patternProperties": {f"^.*{i}.*$": integer for i in range(50)}},
        "multipleOf a large prime": {"type": "integer", "multipleOf": 1_000_003},
    }


def _regexes() -> Mapping[str, str]:
    return {
        "(a+)+b": "(a+)+b",
        "100,000 open groups": "(" * 100_000,
        "foo**": "foo**",
        "a million of one letter": "a{1000}{1000}",
        "a counted billion": "a{1000000000}",
        "the 20th from the end": "[ab]*a[ab]{20}c",
        "forty optional parts": "".join(f"({chr(97 + i % 26)}+x)?" for i in range(40)) + "z",
        "letters of all scripts, 200 times": r"\p{L}{200}",
    }


def _grammars() -> Mapping[str, str]:
    doubled = "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(30))
    return {
        "a rule doubled 30 times": f'root ::= r0\n{doubled}\nr30 ::= "a"',
        "2,000 rules": "root ::= r0\n" + "\n".join(f'r{i} ::= "a" r{i + 1}' for i in range(2000)) + '\nr2000 ::= "a"',
    }


def _chain(count: int, definition: Any) -> dict[str, Any]:
    return {"$ref": "#/$defs/d0", "$defs": {f"d{i}": definition(i) for i in range(count)}}


def _member(name: str, target: int) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"$ref": f"#/$defs/d{target}"}}}


def _nested_objects(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "string"} if depth == 1 else _nested_objects(depth - 1)
    return {"type": "object", "properties": {f"p{i}": inner if i % 50 == 0 else {"type": "string"} for i in range(250)}}


def send_through_gate(guides: Iterable[Guide], pause_s: float) -> None:
    """What a router does with them, one after another."""
    gate = GuideGate()
    for guide in guides:
        with suppress(InvalidRequest):
            gate.resolve(guide.type.value, guide.text)
        time.sleep(pause_s)


if __name__ == "__main__":  # a process of its own, as the router is; begins when it is told to
    made = list(bombs().values())
    sys.stdin.readline()
    send_through_gate(made, 0.05)
