"""What the gate lets through and how it refuses the rest: by tensor, place, value and remedy."""

from __future__ import annotations

import json
import socket

import pytest

from tandem.errors import InvalidRequest, Unsupported
from tandem.guided.capabilities import CAPABILITIES
from tandem.guided.check import check_guide, resolve_guide
from tandem.guided.gate import GuideGate
from tandem.guided.limits import GuideLimits
from tandem.types import Guide, GuideType

CPU = CAPABILITIES["cpu"]
TREE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "maxItems": 2, "items": {"$ref": "#"}}},
    "required": ["v"],
}
TOOL = {"begin": "<tool_call>", "schema": {"type": "object"}, "end": "</tool_call>"}


def text_of(guide: object) -> str:
    return guide if isinstance(guide, str) else json.dumps(guide)


@pytest.mark.parametrize(
    ("guide_type", "guide"),
    [
        ("json", ""),
        ("json_schema", {"type": "object", "properties": {"a": {"type": ["string", "null"], "maxLength": 5}}}),
        ("json_schema", TREE),
        ("json_schema", {"$id": "http://x/y", "$ref": "#/$defs/a", "$defs": {"a": {"$anchor": "here", "const": 1}}}),
        ("json_schema", {"type": "string", "pattern": r"^(https:\/\/)?ex\.org\/[a-z]{1,5}$"}),
        ("json_schema", {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True}),
        ("regex", "(yes|no)"),
        ("regex", r"^\d{4}-\d{2}$"),
        ("ebnf_grammar", 'root ::= root "a" | "b"'),
        ("ebnf_grammar", 'root ::= item ("," item)*  # items\nitem ::= [a-z]+ | "\\"" [^"]{1,20} "\\""'),
        ("structural_tag", {"structures": [TOOL], "triggers": ["<tool_call>"]}),
        ("choice", ["yes", "no", 'a/b "c" (d)*']),
    ],
)
def test_check_when_guide_is_right_then_passes(guide_type: str, guide: object) -> None:
    check_guide(guide_type, text_of(guide), CPU, GuideLimits())


@pytest.mark.parametrize(
    ("guide_type", "guide", "said"),
    [
        ("json_schema", "not json", "$ = not json; give valid JSON"),
        ("json_schema", "", "the type json_schema needs a guide"),
        ("json_schema", [1], "a schema is an object"),
        ("json_schema", {"type": "objekt"}, "$.type = objekt; use string, number"),
        ("json_schema", {"type": "object", "properties": 5}, "$.properties = 5; give an object of schemas"),
        ("json_schema", {"properties": {"a": {"items": {"pattern": "^(abc$"}}}}, "$.properties.a.items.pattern = ^(abc$"),
        ("json_schema", {"type": "string", "maxLength": -1}, "$.maxLength = -1; give a whole number"),
        ("json_schema", {"type": "integer", "minimum": "3"}, "$.minimum = 3; give a number"),
        (
            "json_schema",
            {"type": "integer", "minimum": 3, "exclusiveMinimum": True},
            "$.exclusiveMinimum = true; the form of draft 4",
        ),
        ("json_schema", {"required": "a"}, "$.required = a; give an array of property names"),
        ("json_schema", {"enum": []}, "$.enum = []; give an array with at least one value"),
        ("json_schema", {"anyOf": []}, "$.anyOf = []; give at least one schema"),
        ("json_schema", {"$ref": "#/$defs/no"}, "$.$ref = #/$defs/no; there is nothing at this place"),
        ("json_schema", {"$ref": "#"}, "a reference loop; no finite value is valid"),
        ("json_schema", {"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "no finite value is valid"),
        (
            "json_schema",
            {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
            "no finite value",
        ),
        ("json_schema", {"minItems": 3, "maxItems": 1}, "$.minItems = 3; it is above maxItems, 1"),
        ("json_schema", {"type": "integer", "minimum": 5, "maximum": 3}, "no value is valid"),
        ("json_schema", {"properties": {"b": {"not": {}}}}, "$.properties.b.not = {}; the keyword not is not supported"),
        ("json_schema", {"items": {"uniqueItems": True}}, "$.items.uniqueItems = true"),
        ("json_schema", {"items": {"format": "iri"}}, "$.items.format = iri; this format is not supported"),
        ("json_schema", {"oneOf": [{"type": "integer"}, {"type": "number"}]}, "$.oneOf = schemas that may overlap"),
        ("json_schema", {"divisibleBy": 2}, "$.divisibleBy = 2; this keyword of an old draft"),
        ("json_schema", {"x-guidance": {"lenient": True}, "not": {}}, "$['x-guidance']"),
        ("json_schema", {"pattern": "(?=a)b"}, "$.pattern = (?=a)b; the pattern cannot be used: look-around"),
        ("json", "{}", "the type json takes no guide"),
        ("regex", "(a", "unclosed group"),
        ("regex", r"[^\s\S]", "it matches nothing"),
        ("ebnf_grammar", "root ::= noun", "line 1: noun in the rule root; no rule has this name"),
        ("ebnf_grammar", 'x ::= "a"', "a grammar without a rule root"),
        ("ebnf_grammar", 'root ::= x\nx ::= "abc', "line 2: rule x; a string is not closed"),
        ("ebnf_grammar", 'root ::= "a"\nroot ::= "b"', "line 2: root; the rule is already defined on line 1"),
        ("ebnf_grammar", 'root ::= "a" root', "line 1: the rule root; it never ends"),
        ("ebnf_grammar", "root ::= (=x)", "lookahead is not supported"),
        ("structural_tag", {"structures": [TOOL], "triggers": ["<other>"]}, "$.structures[0].begin = <tool_call>"),
        (
            "structural_tag",
            {"structures": [{**TOOL, "schema": {"type": "objekt"}}], "triggers": ["<"]},
            "$.structures[0].schema.type",
        ),
        ("structural_tag", {"structures": [TOOL], "triggers": ["<tool_call>"], "extra": 1}, "$.extra = 1"),
        ("choice", [], "give a JSON array with at least one text"),
        ("choice", ["a", 1], "$[1] = 1"),
    ],
)
def test_check_when_guide_is_wrong_then_names_place_and_remedy(guide_type: str, guide: object, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_guide(guide_type, text_of(guide), CPU, GuideLimits())
    assert caught.value.field == "guided_decoding_guide"
    assert said in caught.value.message


def test_check_when_type_is_unknown_or_missing_then_names_the_type_tensor() -> None:
    for guide_type, guide in (("yaml", "x"), (None, "x")):
        with pytest.raises(InvalidRequest) as caught:
            check_guide(guide_type, guide, CPU, GuideLimits())
        assert caught.value.field == "guided_decoding_guide_type"


def test_check_when_profile_lacks_the_type_then_unsupported() -> None:
    guide = text_of({"structures": [TOOL], "triggers": ["<tool_call>"]})
    with pytest.raises(Unsupported) as caught:
        check_guide("structural_tag", guide, CAPABILITIES["trtllm"], GuideLimits())
    assert caught.value.field == "guided_decoding_guide_type"


def test_resolve_when_choice_then_engines_get_a_regex() -> None:
    assert resolve_guide("choice", '["a.b", "c"]', CPU, GuideLimits()) == Guide(GuideType.REGEX, r"a\.b|c")
    assert resolve_guide(None, None, CPU, GuideLimits()) is None


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/x.json",
        "https://example.com/schema#/definitions/a",
        "file:///etc/passwd",
        "gopher://127.0.0.1/x",
        "http://169.254.169.254/latest/meta-data",
        "http://[::ffff:127.0.0.1]/x",
        "other.json#/a",
    ],
)
def test_check_when_reference_is_remote_then_refused_without_a_socket(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_socket(*args: object, **kwargs: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", no_socket)
    with pytest.raises(InvalidRequest, match="nothing is fetched"):
        check_guide("json_schema", text_of({"properties": {"a": {"$ref": url}}}), CPU, GuideLimits())


def test_gate_when_asked_again_then_answers_from_memory() -> None:
    gate = GuideGate()
    schema = text_of({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(200)}})
    first = gate.resolve("json_schema", schema)
    assert gate.resolve("json_schema", schema) is first
    with pytest.raises(InvalidRequest):
        gate.resolve("json_schema", "[")
    assert gate.resolve(None, None) is None
