"""JSON Schemas over a vocabulary of single signs: what a guide takes and what it does not."""

from __future__ import annotations

import json

import jsonschema
import pytest
from llguidance import LLTokenizer, TokenizerWrapper

from loadtest.bench.guided_schemas import SCHEMAS
from tandem.guided.compiler import GrammarCompiler
from tests.guided_factories import schema_guide


class _Bytes:
    """One token per byte, so that any text can be followed."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([value]) for value in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


COMPILER = GrammarCompiler(LLTokenizer(TokenizerWrapper(_Bytes()), slices=[]))


def takes(schema: object, document: object) -> bool:
    """``document`` as text, or a value that is written as guides write it."""
    matcher = COMPILER.compile(schema_guide(schema)).matcher()
    tokens = list((document if isinstance(document, str) else json.dumps(document)).encode())
    if matcher.count_accepted(tokens) < len(tokens):
        return False
    for token in tokens:
        matcher.consume(token)
    return matcher.is_accepting


def v(**bounds: float) -> dict[str, object]:
    return {"type": "object", "properties": {"v": {"type": "integer", **bounds}}, "required": ["v"]}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (v(minimum=3), ["3", "10", "29", "100"], ["2", "0", "03", "-3"]),
        (v(minimum=-5), ["-5", "-1", "0", "7"], ["-6", "-10"]),
        (v(exclusiveMinimum=0, maximum=10), ["1", "10"], ["0", "11", "010"]),
        (v(minimum=-123, maximum=42), ["-123", "-99", "0", "42"], ["-124", "43"]),
    ],
)
def test_integer_bounds_when_one_sided_or_negative_then_exact(schema: object, good: list[str], bad: list[str]) -> None:
    """BC-12 (a) to (d)."""
    assert all(takes(schema, f'{{"v": {number}}}') for number in good)
    assert not any(takes(schema, f'{{"v": {number}}}') for number in bad)


def test_declared_key_when_other_keys_are_free_then_keeps_its_type_and_comes_once() -> None:
    """BC-12 (e)."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True}
    assert takes(schema, {})
    assert takes(schema, {"a": 1, "b": "text"})
    assert takes(schema, {"b": "text"})
    assert not takes(schema, {"a": "text"})
    assert not takes(schema, '{"b": 1, "a": "text"}')
    assert not takes(schema, '{"a": 1, "a": 2}')
    assert not takes(schema, '{"\\u0061": "text"}')


def test_white_space_when_between_elements_then_one_blank_and_no_more() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}
    assert takes(schema, '{"a": [1, 2]}')
    for text in ('{"a":[1,2]}', '{"a": [1,  2]}', '{"a": [1,\n2]}', '{ "a": [1]}', '{"a": [1]}\n', ' {"a": [1]}'):
        assert not takes(schema, text), text


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_schemas_of_the_benchmark_when_checked_then_valid_and_compiled(schema: dict[str, object]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    COMPILER.compile(schema_guide(schema))
