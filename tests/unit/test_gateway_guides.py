"""Fields that say what an answer must match: to one guide, or 400 by name; two of them never."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tandem.errors import InvalidRequest, from_wire, to_wire
from tandem.guided.capabilities import CAPABILITIES
from tandem.guided.check import resolve_guide
from tandem.guided.limits import GuideLimits
from tandem_client.guide import Guide
from tests.unit.gateway_fakes import FakeBackend, RunningGateway, fails, running_gateway

SCHEMA = {"type": "object", "properties": {"é": {"type": "integer"}}, "required": ["é"]}
TAG = {"structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}], "triggers": ["<a>"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
STRICT_FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": False, "description": "d"}}
TOOL = {"type": "function", "function": {"name": "f"}}
GRAMMAR = 'root ::= "a" | "b"'


@pytest.fixture(name="shared", scope="module")
def _shared() -> Iterator[RunningGateway]:
    with running_gateway(FakeBackend()) as gateway:
        yield gateway


@pytest.fixture(name="gateway", params=["chat", "complete"])
def _gateway(shared: RunningGateway, request: pytest.FixtureRequest) -> Any:
    """A call of one of the two routes."""
    shared.backend.reset()
    return getattr(shared, request.param)


@pytest.mark.parametrize(
    ("fields", "guide"),
    [
        ({"response_format": {"type": "json_object"}}, Guide.json_object()),
        ({"response_format": FORMAT}, Guide.json_schema(SCHEMA)),
        ({"response_format": STRICT_FORMAT}, Guide.json_schema(SCHEMA)),
        ({"structured_outputs": {"json": SCHEMA}}, Guide.json_schema(SCHEMA)),
        ({"structured_outputs": {"json": '{"type": "object"}'}}, Guide("json_schema", '{"type": "object"}')),
        ({"structured_outputs": {"regex": "a+", "disable_fallback": True, "json_object": False}}, Guide.regex("a+")),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, Guide.choice(["yes", "no"])),
        ({"structured_outputs": {"grammar": GRAMMAR}}, Guide.grammar(GRAMMAR)),
        ({"structured_outputs": {"json_object": True}}, Guide.json_object()),
        ({"structured_outputs": {"structural_tag": TAG}}, Guide.structural_tag(TAG)),
        ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, Guide("structural_tag", json.dumps(TAG))),
        ({"guided_json": SCHEMA}, Guide.json_schema(SCHEMA)),
        ({"guided_regex": "a+"}, Guide.regex("a+")),
        ({"guided_choice": ["yes", "no"]}, Guide.choice(["yes", "no"])),
        ({"guided_grammar": GRAMMAR}, Guide.grammar(GRAMMAR)),
        ({"guided_json": None, "response_format": {"type": "text"}, "structured_outputs": None}, None),
    ],
    ids=str,
)
def test_constraint_when_given_then_reaches_the_backend_as_a_guide_it_takes(
    shared: RunningGateway, gateway: Any, fields: dict[str, Any], guide: Guide | None
) -> None:
    assert gateway(**fields).status_code == 200
    (asked,) = shared.backend.requests
    assert asked.guide == guide
    if guide is not None:
        resolve_guide(guide.type, guide.text, CAPABILITIES["cpu"], GuideLimits())


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "name and schema"),
        ({"response_format": {"type": "json_schema", "schema": {}}}, "response_format.schema", "does not know"),
        ({"response_format": {"type": "json_object", "json_schema": FORMAT["json_schema"]}}, "response_format.json_schema", "only"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "missing",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": "not json"}}},
            "response_format.json_schema.schema",
            "object",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
            "response_format.json_schema.name",
            "letters",
        ),
        ({"response_format": "json"}, "response_format", "object"),
        ({"response_format": {}}, "response_format.type", "missing"),
        ({"guided_json": "not json"}, "guided_json", "JSON object"),
        ({"guided_json": "[1]"}, "guided_json", "JSON object"),
        ({"guided_json": {"const": "\ud800"}}, "guided_json", "Unicode"),
        ({"guided_json": 7}, "guided_json", "7"),
        ({"guided_regex": ""}, "guided_regex", "at least one"),
        ({"guided_choice": []}, "guided_choice", "at least one"),
        ({"guided_choice": ["a", ""]}, "guided_choice[1]", "at least one"),
        ({"guided_choice": [1]}, "guided_choice[0]", "text"),
        ({"guided_grammar": 1}, "guided_grammar", "text"),
        ({"structured_outputs": {}}, "structured_outputs", "json, regex"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs", "json, regex"),
        ({"structured_outputs": {"yaml": "x"}}, "structured_outputs.yaml", "does not know"),
        (
            {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
            "leave it out",
        ),
        (
            {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
            "structured_outputs.disable_any_whitespace",
            "False",
        ),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "JSON object"),
    ],
    ids=str,
)
def test_constraint_when_misshapen_then_400_names_the_place(
    shared: RunningGateway, gateway: Any, fields: dict[str, Any], param: str, said: str
) -> None:
    response = _post_ascii(shared, gateway, fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert said in error["message"]
    assert shared.backend.requests == []


def _post_ascii(shared: RunningGateway, gateway: Any, fields: dict[str, Any]) -> Any:
    """A lone surrogate can be sent only as an escape."""
    is_chat = gateway.__name__ == "chat"
    body = {"model": "tandem", **fields, **({"messages": [{"role": "user", "content": "x"}]} if is_chat else {"prompt": "x"})}
    route = "/v1/chat/completions" if is_chat else "/v1/completions"
    return shared.http.post(route, content=json.dumps(body).encode(), headers={"content-type": "application/json"})


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"guided_json": SCHEMA, "guided_regex": "a"}, ("guided_json", "guided_regex")),
        ({"response_format": FORMAT, "guided_regex": "a"}, ("response_format.json_schema.schema", "guided_regex")),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            ("response_format", "structured_outputs.regex"),
        ),
        ({"structured_outputs": {"json": SCHEMA, "choice": ["a"]}}, ("structured_outputs.json", "structured_outputs.choice")),
    ],
    ids=str,
)
def test_constraints_when_two_are_given_then_400_names_both(
    shared: RunningGateway, gateway: Any, fields: dict[str, Any], names: tuple[str, str]
) -> None:
    response = gateway(**fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, names[1])
    assert all(name in error["message"] for name in names)
    assert shared.backend.requests == []


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"tools": [TOOL], "response_format": FORMAT}, ("response_format.json_schema.schema", "tools")),
        ({"tools": [TOOL], "tool_choice": "required", "guided_choice": ["a"]}, ("guided_choice", "tools")),
    ],
    ids=str,
)
def test_constraint_when_given_beside_tools_then_400_names_both(
    shared: RunningGateway, fields: dict[str, Any], names: tuple[str, str]
) -> None:
    error = shared.chat(**fields).json()["error"]
    assert error["param"] == "tools"
    assert all(name in error["message"] for name in names)


def test_constraint_when_given_beside_tools_that_cannot_be_called_then_holds(shared: RunningGateway) -> None:
    shared.backend.reset()
    assert shared.chat(tools=[TOOL], tool_choice="none", response_format=FORMAT).status_code == 200
    assert shared.backend.requests[0].guide == Guide.json_schema(SCHEMA)
    assert shared.backend.requests[0].tools is None


def refused_by_the_router(guide: Guide) -> InvalidRequest:
    """What the router says, after its way through Triton's text."""
    with pytest.raises(InvalidRequest) as caught:
        resolve_guide(guide.type, guide.text, CAPABILITIES["cpu"], GuideLimits())
    return from_wire(to_wire(caught.value))  # type: ignore[return-value]


BAD = {"type": "object", "properties": {"v": {"type": "objekt"}}}


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": BAD}}},
            "response_format.json_schema.schema",
            "$.properties.v.type = objekt",
        ),
        ({"guided_json": BAD}, "guided_json", "$.properties.v.type = objekt"),
        ({"structured_outputs": {"json": BAD}}, "structured_outputs.json", "$.properties.v.type = objekt"),
        ({"guided_regex": "^(abc$"}, "guided_regex", "guided_regex: got "),
        ({"guided_grammar": "root ::= noun"}, "guided_grammar", "noun"),
        ({"structured_outputs": {"structural_tag": {"a": 1}}}, "structured_outputs.structural_tag", "$.a"),
    ],
    ids=str,
)
def test_constraint_when_the_router_refuses_it_then_400_names_field_and_place(
    shared: RunningGateway, gateway: Any, fields: dict[str, Any], param: str, said: str
) -> None:
    gateway(**fields)
    guide = shared.backend.requests[-1].guide
    assert guide is not None
    shared.backend.script = fails(refused_by_the_router(guide))
    for stream in (False, True):
        response = gateway(**fields, stream=stream)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, param)
        assert error["message"].startswith(f"{param}: got ")
        assert said in error["message"]
        assert "guided_decoding" not in error["message"]


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "bad"}}], ids=str)
def test_tool_when_the_router_refuses_its_schema_then_400_names_the_tool(shared: RunningGateway, choice: Any) -> None:
    shared.backend.reset()
    tools = [TOOL, {"type": "function", "function": {"name": "bad", "parameters": BAD}}]
    shared.chat(tools=tools, tool_choice=choice)
    guide = shared.backend.requests[-1].guide
    assert guide is not None
    shared.backend.script = fails(refused_by_the_router(guide))
    error = shared.chat(tools=tools, tool_choice=choice).json()["error"]
    assert error["param"] == "tools[1].function.parameters"
    assert error["message"].startswith("tools[1].function.parameters: got $.properties.v.type")


def test_tools_when_the_profile_does_not_take_the_guide_then_400_names_tools(shared: RunningGateway) -> None:
    shared.backend.reset()
    with pytest.raises(InvalidRequest) as caught:
        resolve_guide("structural_tag", "{}", CAPABILITIES["trtllm"], GuideLimits())
    shared.backend.script = fails(from_wire(to_wire(caught.value)))  # type: ignore[arg-type]
    error = shared.chat(tools=[TOOL]).json()["error"]
    assert (error["param"], error["code"]) == ("tools", "unsupported")
