"""Tools over HTTP: the guide they become, the calls that come back in OpenAI's form, refusals by name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest

from tandem_client.text import TextChunk, TextRequest
from tandem_client.tools import Tool, ToolUse
from tests.unit.gateway_fakes import CHAT, FakeBackend, RunningGateway, chunk, events, running_gateway, says

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Now", "parameters": PARAMETERS, "strict": True}}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = (Tool("get_weather", "Now", PARAMETERS), Tool("now"))
NAMED = {"type": "function", "function": {"name": "get_weather"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
ENTRY = {"token": "x", "bytes": [120], "logprob": -0.5, "top_logprobs": []}


@pytest.fixture(name="shared", scope="module")
def _shared() -> Iterator[RunningGateway]:
    with running_gateway(FakeBackend()) as gateway:
        yield gateway


@pytest.fixture(name="gateway")
def _gateway(shared: RunningGateway) -> RunningGateway:
    shared.backend.reset()
    return shared


def deltas(got: list[Any], index: int = 0) -> list[dict[str, Any]]:
    choices = [choice for event in got if event != "[DONE]" for choice in event["choices"]]
    return [choice["delta"] for choice in choices if choice["index"] == index]


@pytest.mark.parametrize(
    ("fields", "use"),
    [
        ({}, ToolUse(TOOLS, "auto", ("get_weather", "now"))),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, ToolUse(TOOLS, "auto", ("get_weather", "now"), False)),
        ({"tool_choice": "required"}, ToolUse(TOOLS, "required", ("get_weather", "now"))),
        ({"tool_choice": NAMED}, ToolUse(TOOLS, "named", ("get_weather",))),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}},
            ToolUse(TOOLS, "required", ("get_weather",)),
        ),
    ],
    ids=str,
)
def test_tools_when_given_then_are_in_the_prompt_and_guide_the_answer(
    gateway: RunningGateway, fields: dict[str, Any], use: ToolUse
) -> None:
    gateway.chat(tools=[WEATHER, NOW], **fields)
    request = gateway.backend.requests[-1]
    assert (request.tools, request.guide) == (use.prompt_json, use.guide)


@pytest.mark.parametrize("fields", [{"tools": [WEATHER], "tool_choice": "none"}, {"tools": []}, {"tool_choice": "none"}], ids=str)
def test_tools_when_none_can_be_called_then_are_left_out_and_the_answer_stays_text(
    gateway: RunningGateway, fields: dict[str, Any]
) -> None:
    gateway.backend.script = says(CALL)
    choice = gateway.chat(**fields).json()["choices"][0]
    assert (choice["message"], choice["finish_reason"]) == ({"role": "assistant", "content": CALL, "refusal": None}, "stop")
    assert (gateway.backend.requests[-1].tools, gateway.backend.requests[-1].guide) == (None, None)


def test_call_when_not_streamed_then_has_openai_form(gateway: RunningGateway) -> None:
    gateway.backend.script = says(CALL)
    choice = gateway.chat(tools=[WEATHER]).json()["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert call.pop("id").startswith("call_")
    assert call == {"type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"


def test_call_when_streamed_then_deltas_have_openai_form(gateway: RunningGateway) -> None:
    gateway.backend.script = says(
        "Let me", " look.\n<tool", "_call>\n{", '"name": "get_weather", "arguments": ', '{"ci', 'ty": "Paris"}', "}\n</tool_call>"
    )
    got = events(gateway.chat(tools=[WEATHER], stream=True).text)
    found = deltas(got)
    call_id = found[3]["tool_calls"][0]["id"]
    assert found == [
        {"role": "assistant", "content": None},
        {"content": "Let me"},
        {"content": " look."},
        {"tool_calls": [{"index": 0, "id": call_id, "type": "function", "function": {"name": "get_weather", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"ci'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": 'ty": "Paris"}'}}]},
        {},
    ]
    assert [event["choices"][0]["finish_reason"] for event in got[:-1]] == [None] * 6 + ["tool_calls"]
    assert got[-1] == "[DONE]"


@pytest.mark.parametrize("stream", [False, True])
def test_calls_when_required_then_several_come_with_their_own_ids(gateway: RunningGateway, stream: bool) -> None:
    gateway.backend.script = says(
        '[{"name": "get_weather", "arguments": {"city": "A"}}, {"name"',
        ': "now", "arguments": {}}, {"name": "now", "arguments": {}}]',
    )
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0) as client:
        asked: dict[str, Any] = {
            "model": "tandem",
            "messages": CHAT["messages"],
            "tools": [WEATHER, NOW],
            "tool_choice": "required",
        }
        if stream:
            with client.chat.completions.stream(**asked) as chunks:
                answer = chunks.get_final_completion()
        else:
            answer = client.chat.completions.create(**asked)
    calls = answer.choices[0].message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("get_weather", '{"city": "A"}'),
        ("now", "{}"),
        ("now", "{}"),
    ]
    assert len({call.id for call in calls}) == 3
    assert (answer.choices[0].finish_reason, answer.choices[0].message.content) == ("tool_calls", None)


def test_call_when_named_then_the_text_is_its_arguments(gateway: RunningGateway) -> None:
    gateway.backend.script = says('{"city": ', '"Rome"}')
    for choice in gateway.chat(tools=[WEATHER, NOW], tool_choice=NAMED, n=2).json()["choices"]:
        (call,) = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Rome"}'}


@pytest.mark.parametrize("stream", [False, True])
def test_call_when_cut_by_the_limit_then_finish_reason_is_length(gateway: RunningGateway, stream: bool) -> None:
    gateway.backend.script = says('{"city": "Ro', finish="length")
    response = gateway.chat(tools=[WEATHER], tool_choice=NAMED, stream=stream)
    if stream:
        got = events(response.text)
        parts = [call["function"]["arguments"] for delta in deltas(got) for call in delta.get("tool_calls", ())]
        arguments, reason = "".join(parts), got[-2]["choices"][0]["finish_reason"]
    else:
        choice = response.json()["choices"][0]
        arguments, reason = choice["message"]["tool_calls"][0]["function"]["arguments"], choice["finish_reason"]
    assert (arguments, reason) == ('{"city": "Ro', "length")


def test_call_when_cut_before_its_name_then_message_has_neither_content_nor_calls(gateway: RunningGateway) -> None:
    gateway.backend.script = says('[{"na', finish="length")
    choice = gateway.chat(tools=[WEATHER], tool_choice="required").json()["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": None}
    assert choice["finish_reason"] == "length"


def test_answer_when_tools_are_not_called_then_is_plain(gateway: RunningGateway) -> None:
    gateway.backend.script = says("It is a <tool", ">. \n")
    choice = gateway.chat(tools=[WEATHER]).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("It is a <tool>. \n", "stop")
    assert "tool_calls" not in choice["message"]
    found = deltas(events(gateway.chat(tools=[WEATHER], stream=True).text))
    assert "".join(delta.get("content") or "" for delta in found) == "It is a <tool>. \n"


def test_log_probs_when_asked_for_beside_calls_then_all_tokens_have_one(gateway: RunningGateway) -> None:
    async def script(request: TextRequest) -> AsyncIterator[TextChunk]:
        for number, text in enumerate(["<tool_", 'call>{"name": "now", "arguments": {}', "}</tool_call>"]):
            yield chunk(text, "stop" if number == 2 else "", count=number + 1, content=json.dumps([ENTRY]))

    gateway.backend.script = script
    whole = gateway.chat(tools=[NOW], logprobs=True).json()["choices"][0]["logprobs"]["content"]
    got = events(gateway.chat(tools=[NOW], logprobs=True, stream=True).text)
    streamed = [entry for event in got[:-1] for entry in (event["choices"][0]["logprobs"] or {}).get("content", [])]
    assert streamed == whole == [ENTRY] * 3


@pytest.mark.parametrize("stream", [False, True])
def test_call_when_the_backend_breaks_its_form_then_500(gateway: RunningGateway, stream: bool) -> None:
    gateway.backend.script = says("[1]")
    response = gateway.chat(tools=[WEATHER], tool_choice=NAMED, stream=stream)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "engine_failure"


def test_messages_of_a_round_trip_then_reach_the_backend(gateway: RunningGateway) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "annotations": []},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "noon"}]},
    ]
    assert gateway.chat(messages=messages, tools=[NOW]).status_code == 200
    sent = json.loads(gateway.backend.requests[-1].messages or "")
    assert sent[1:] == [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": [{"type": "text", "text": "noon"}], "tool_call_id": "call_1"},
    ]


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"tools": "f"}, "tools", "list"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type", "function"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing"),
        ({"tools": [tool(name="a b")]}, "tools[0].function.name", "letters"),
        ({"tools": [tool(name="x" * 65)]}, "tools[0].function.name", "64"),
        ({"tools": [NOW, tool(), tool()]}, "tools[2].function.name", "of its own"),
        ({"tools": [tool(parameters="{}")]}, "tools[0].function.parameters", "object"),
        ({"tools": [NOW, tool(parameters={"type": "string"})]}, "tools[1].function.parameters.type", "string"),
        ({"tools": [tool(parameters={"$ref": "#/$defs/a"})]}, "tools[0].function.parameters.type", "object"),
        ({"tools": [tool(colour="red")]}, "tools[0].function.colour", "does not know"),
        ({"tools": [tool(name=f"f{number}") for number in range(65)]}, "tools", "64"),
        ({"tool_choice": "required"}, "tool_choice", "give the tools"),
        ({"tools": [], "tool_choice": NAMED}, "tool_choice", "give the tools"),
        ({"tools": [NOW], "tool_choice": "any"}, "tool_choice", "required"),
        ({"tools": [NOW], "tool_choice": NAMED}, "tool_choice.function.name", "get_weather"),
        ({"tools": [NOW], "parallel_tool_calls": "no"}, "parallel_tool_calls", "true or false"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content", "tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls[0].function", "missing"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {}}}]}]},
            "messages[0].tool_calls[0].function.arguments",
            "text",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_tools_when_wrong_then_400_names_the_place(gateway: RunningGateway, fields: dict[str, Any], param: str, said: str) -> None:
    response = gateway.chat(**fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert said in error["message"]
    assert gateway.backend.requests == []


def test_tools_when_sent_to_plain_completions_then_unknown(gateway: RunningGateway) -> None:
    error = gateway.complete(tools=[NOW]).json()["error"]
    assert (error["param"], error["code"]) == ("tools", "unknown_field")
