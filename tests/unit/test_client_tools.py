"""What tools become: guides that the router takes, that hold a text to the form the reader reads, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tandem.errors import InvalidRequest
from tandem.guided.capabilities import CAPABILITIES
from tandem.guided.check import resolve_guide
from tandem.guided.limits import GuideLimits
from tandem.protocol import GUIDE_TYPES
from tandem_client.core import chat_call
from tandem_client.guide import Guide
from tandem_client.tools import MAX_PARALLEL_CALLS, Mode, Tool, ToolUse

NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}, "tag": {"$ref": "#/$defs/tag"}, "$ref": {"type": "null"}},
    "required": ["v"],
    "additionalProperties": False,
    "$defs": {"tag": {"enum": [{"$ref": "#/kept"}, "a"]}},
}
TOOLS = (Tool("now"), Tool("walk", "Walk a list", NODE))
NODE_VALUE = {"v": 1, "next": {"v": 2, "tag": "a"}}


def use(mode: Mode, *names: str, parallel: bool = True, tools: tuple[Tool, ...] = TOOLS) -> ToolUse:
    return ToolUse(tools, mode, names or tuple(tool.name for tool in tools), parallel)


def resolve(guide: Guide, profile: str = "cpu") -> None:
    resolve_guide(guide.type, guide.text, CAPABILITIES[profile], GuideLimits())


@pytest.mark.parametrize("mode", ["auto", "required", "named"])
@pytest.mark.parametrize("parallel", [True, False])
def test_guide_of_tools_is_taken_by_the_router(mode: Mode, parallel: bool) -> None:
    resolve(use(mode, *(["walk"] if mode == "named" else []), parallel=parallel).guide)


@pytest.mark.parametrize("mode", ["required", "named"])
def test_forced_calls_need_nothing_that_a_gpu_profile_lacks(mode: Mode) -> None:
    resolve(use(mode, *(["walk"] if mode == "named" else [])).guide, "trtllm")


def test_list_guide_holds_names_arguments_and_number_of_calls() -> None:
    schema = json.loads(use("required").guide.text)
    validator = jsonschema.Draft202012Validator(schema)
    walk, now = {"name": "walk", "arguments": NODE_VALUE}, {"name": "now", "arguments": {}}
    for good in ([walk], [now, walk], [now] * MAX_PARALLEL_CALLS):
        assert validator.is_valid(good)
    bad: list[Any] = [[], [now] * (MAX_PARALLEL_CALLS + 1), [{"name": "other", "arguments": {}}], [{"name": "now"}]]
    bad += [[{"name": "walk", "arguments": {"v": 1, "next": {"v": "2"}}}], [{"name": "now", "arguments": NODE_VALUE}]]
    for value in bad:
        assert not validator.is_valid(value)
    assert {"enum": [{"$ref": "#/kept"}, "a"]} in schema["$defs"]["tool_1"]["$defs"].values(), "literals are not references"


def test_list_guide_when_not_parallel_then_holds_one_call() -> None:
    assert json.loads(use("required", parallel=False).guide.text)["maxItems"] == 1


def test_named_guide_is_the_schema_of_the_tool() -> None:
    assert json.loads(use("named", "walk").guide.text) == NODE
    assert not jsonschema.Draft202012Validator(json.loads(use("named", "now").guide.text)).is_valid({"a": 1})


def test_tagged_guide_has_only_callable_tools_and_one_call_when_not_parallel() -> None:
    tag = json.loads(use("auto", "walk", parallel=False).guide.text)
    assert [structure["schema"] for structure in tag["structures"]] == [NODE]
    assert tag["stop_after_first"] is True
    assert "stop_after_first" not in json.loads(use("auto").guide.text)


@pytest.mark.parametrize("mode", ["auto", "required", "named"])
def test_places_lead_from_an_error_of_the_router_to_the_tool(mode: Mode) -> None:
    wrong = Tool("wrong", parameters={"type": "object", "properties": {"x": {"type": "objekt"}}})
    tools = use(mode, *(["wrong"] if mode == "named" else []), tools=(*TOOLS, wrong))
    with pytest.raises(InvalidRequest) as caught:
        resolve(tools.guide)
    (path,) = [path for path, index in tools.places if index == 2]
    assert caught.value.message.startswith(f"guided_decoding_guide: got {path}.properties.x.type")
    assert "objekt" in caught.value.message


def test_prompt_shows_every_tool_in_the_form_of_openai() -> None:
    shown = json.loads(use("named", "walk").prompt_json)
    assert [tool["function"]["name"] for tool in shown] == ["now", "walk"]
    assert shown[1] == {"type": "function", "function": {"name": "walk", "description": "Walk a list", "parameters": NODE}}


def test_guides_have_types_of_the_protocol_and_are_taken() -> None:
    tag = {"structures": [{"begin": "<a>", "schema": {"type": "object"}, "end": "</a>"}], "triggers": ["<a>"]}
    guides = [
        Guide.json_object(), Guide.json_schema(NODE), Guide.regex("a+"), Guide.choice(["é", 'b"']), Guide.grammar('root ::= "a"'),
        Guide.structural_tag(tag),
    ]  # fmt: skip
    assert {guide.type for guide in guides} == {*GUIDE_TYPES} - {"json"}
    for guide in guides:
        resolve(guide)


def call(**changes: Any) -> Any:
    fields: dict[str, Any] = {
        "model": "tandem", "task": None, "sampling": None, "guide": None, "tools": TOOLS, "tool_choice": "auto",
        "parallel_tool_calls": True, **changes,
    }  # fmt: skip
    return chat_call("hi", **fields).tools


def test_tool_choice_of_the_client_is_a_mode_or_a_name() -> None:
    assert call() == use("auto")
    assert call(tool_choice="required", parallel_tool_calls=False) == use("required", parallel=False)
    assert call(tool_choice="walk") == use("named", "walk")
    assert call(tool_choice="none") is None
    assert call(tools=()) is None


@pytest.mark.parametrize(
    "changes", [{"tool_choice": "walks"}, {"tools": (), "tool_choice": "required"}, {"guide": Guide.json_object()}], ids=str
)
def test_arguments_that_contradict_each_other_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"tool_choice|guide"):
        call(**changes)
