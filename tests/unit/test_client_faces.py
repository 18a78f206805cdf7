"""Blocking and asyncio client, over HTTP against a gateway and over gRPC against Triton's protocol: one behaviour."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tandem.errors import EngineFailure, InvalidRequest, to_wire
from tandem_client import AsyncTandemClient, Guide, Sampling, TandemClient, Tool
from tandem_client.errors import ApiError, ClientError, ConnectionFailed
from tandem_client.results import Answer, Call, Delta, Head, Usage
from tandem_client.text import TextChunk, TextRequest
from tandem_client.tools import ToolUse
from tests.unit import gateway_fakes, triton_fakes
from tests.unit.gateway_fakes import FakeBackend, RunningGateway, running_gateway, wait_until
from tests.unit.triton_fakes import FakeTriton, running_triton

FACES = ["http", "http-async", "grpc", "grpc-async"]


@pytest.fixture(name="gateway", scope="module")
def _gateway() -> Iterator[RunningGateway]:
    with running_gateway(FakeBackend()) as gateway:
        yield gateway


@pytest.fixture(name="triton", scope="module")
def _triton() -> Iterator[FakeTriton]:
    with running_triton() as fake:
        yield fake


class Server:
    """The two kinds of server behind one set of switches."""

    def __init__(self, face: str, gateway: RunningGateway, triton: FakeTriton) -> None:
        self.face, self.gateway, self.triton = face, gateway, triton
        gateway.backend.reset()
        triton.answers, triton.stops = triton_fakes.hello, []
        triton.requests.clear()
        self.is_http = face.startswith("http")
        self.address = gateway.url if self.is_http else f"127.0.0.1:{triton.port}"

    def fail(self, error: EngineFailure | InvalidRequest, *before: str) -> None:
        self.gateway.backend.script = gateway_fakes.fails(error, *before)
        message = triton_fakes.service_pb2.ModelStreamInferResponse(error_message=to_wire(error))
        self.triton.answers = lambda tensors, context: iter([*(triton_fakes.response(text) for text in before), message])

    def run_on(self) -> None:
        async def endless(request: TextRequest) -> AsyncIterator[TextChunk]:
            for number in range(1, 10_000):
                yield gateway_fakes.chunk("x", count=number)
                await asyncio.sleep(0.005)

        self.gateway.backend.script = endless
        self.triton.answers = triton_fakes.endless

    @property
    def is_stopped(self) -> bool:
        return bool(self.gateway.backend.stopped or self.triton.stops)

    @property
    def is_asked(self) -> bool:
        return bool(self.gateway.backend.requests or self.triton.requests)


@pytest.fixture(name="server", params=FACES)
def _server(request: pytest.FixtureRequest, gateway: RunningGateway, triton: FakeTriton) -> Server:
    return Server(request.param, gateway, triton)


@contextmanager
def blocking(face: str, address: str) -> Iterator[TandemClient]:
    with TandemClient.http(address) if face == "http" else TandemClient.grpc(address) as client:
        yield client


def asynchronous(face: str, address: str) -> AsyncTandemClient:
    return AsyncTandemClient.http(address) if face == "http-async" else AsyncTandemClient.grpc(address)


def ask(server: Server, method: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of the face under test."""
    if not server.face.endswith("async"):
        with blocking(server.face, server.address) as client:
            return getattr(client, method)(*args, **kwargs)

    async def run() -> Any:
        async with asynchronous(server.face, server.address) as client:
            return await getattr(client, method)(*args, **kwargs)

    return asyncio.run(run())


def read_stream(server: Server, limit: int | None = None) -> list[Any]:
    """The events of a stream; with a limit, the stream is closed after so many."""
    got: list[Any] = []
    if not server.face.endswith("async"):
        with blocking(server.face, server.address) as client:
            stream = client.stream("hi")
            for event in stream:
                got.append(event)
                if len(got) == limit:
                    stream.close()
        return got

    async def run() -> None:
        async with asynchronous(server.face, server.address) as client:
            stream = client.stream("hi")
            async for event in stream:
                got.append(event)
                if len(got) == limit:
                    await stream.aclose()

    asyncio.run(run())
    return got


def error_of(call: Callable[[], Any]) -> ClientError:
    with pytest.raises(ClientError) as caught:
        call()
    return caught.value


def test_chat_when_answered_then_typed_result_names_path_and_decision(server: Server) -> None:
    answer: Answer = ask(server, "chat", "hi", sampling=Sampling(max_tokens=5))
    assert (answer.text, answer.finish_reason, answer.path, answer.engine) == ("Hello world", "stop", "fast", "fast_int4")
    assert answer.decision.startswith("rule")
    assert answer.request_id
    assert answer.usage == Usage(7, 2)
    assert answer.usage.total_tokens == 9
    assert answer.latency.ttft_s is not None
    assert answer.latency.ttft_s <= answer.latency.e2e_s


def test_complete_when_answered_then_text(server: Server) -> None:
    assert ask(server, "complete", "once").text == "Hello world"


def test_stream_when_read_then_head_deltas_usage(server: Server) -> None:
    got = read_stream(server)
    assert isinstance(got[0], Head)
    assert isinstance(got[-1], Usage)
    assert "".join(event.text for event in got if isinstance(event, Delta)) == "Hello world"
    assert [event.finish_reason for event in got if isinstance(event, Delta) and event.finish_reason] == ["stop"]


def test_stream_when_closed_early_then_server_stops(server: Server) -> None:
    server.run_on()
    assert len(read_stream(server, limit=4)) == 4
    wait_until(lambda: server.is_stopped, timeout_s=2)


def test_error_when_before_the_first_text_then_status_and_field(server: Server) -> None:
    server.fail(InvalidRequest("logit_bias", "49152", "use lower ids"))
    error = error_of(lambda: ask(server, "chat", "hi"))
    assert isinstance(error, ApiError)
    assert (error.status, error.code, error.field, error.is_retryable) == (400, "invalid_value", "logit_bias", False)


def test_error_when_in_the_middle_then_partial_text_is_kept(server: Server) -> None:
    server.fail(EngineFailure("the engine broke; try again"), "one", " two")
    error = error_of(lambda: ask(server, "chat", "hi"))
    assert isinstance(error, ApiError)
    assert (error.code, error.partial_text) == ("engine_failure", "one two")


def test_model_when_unknown_then_404(server: Server) -> None:
    error = error_of(lambda: ask(server, "chat", "hi", model="gpt"))
    assert isinstance(error, ApiError)
    assert (error.status, error.code, error.field) == (404, "model_not_found", "model")


def test_models_when_asked_then_the_three(server: Server) -> None:
    assert ask(server, "models") == ("tandem", "tandem-fast", "tandem-slow")


def test_server_when_not_there_then_connection_failed(server: Server) -> None:
    server.address = "http://127.0.0.1:1" if server.is_http else "127.0.0.1:1"
    assert isinstance(error_of(lambda: ask(server, "models")), ConnectionFailed)
    failed = error_of(lambda: ask(server, "chat", "hi"))
    assert isinstance(failed, ConnectionFailed) or (isinstance(failed, ApiError) and failed.status == 503)


def test_sampling_when_sent_over_http_then_reaches_the_backend_unchanged(gateway: RunningGateway) -> None:
    gateway.backend.reset()
    sampling = Sampling(
        max_tokens=5, min_tokens=1, temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, seed=4, repetition_penalty=1.1,
        presence_penalty=0.5, frequency_penalty=0.25, num_return_sequences=2, stop_words=("a", "b"), ignore_eos=True,
        return_log_probs=True, top_logprobs=2, logit_bias_ids=(3, 4), logit_bias_values=(1.0, -1.0),
    )  # fmt: skip
    with TandemClient.http(gateway.url) as client:
        answer = client.chat("hi", sampling=sampling, task="code", model="tandem-slow")
    assert gateway.backend.requests[0].sampling == sampling
    assert (gateway.backend.requests[0].task, gateway.backend.requests[0].path) == ("code", "slow")
    assert [choice.text for choice in answer.choices] == ["Hello world"] * 2


@pytest.mark.parametrize("method", ["chat", "complete"])
def test_log_probs_when_asked_for_then_typed(server: Server, method: str) -> None:
    content = json.dumps([{"token": "Hi", "bytes": [72, 105], "logprob": -0.5, "top_logprobs": [{"token": "Hi", "logprob": -0.5}]}])

    async def script(request: TextRequest) -> AsyncIterator[TextChunk]:
        yield gateway_fakes.chunk("Hi", "stop", content=content)

    server.gateway.backend.script = script
    server.triton.answers = lambda tensors, context: iter([triton_fakes.response("Hi", "stop", content=content)])
    answer: Answer = ask(server, method, "hi", sampling=Sampling(return_log_probs=True, top_logprobs=1))
    (entry,) = answer.choices[0].log_probs
    assert (entry.token, entry.log_prob, entry.top) == ("Hi", -0.5, (("Hi", -0.5),))


def test_call_when_both_or_no_prompt_then_value_error() -> None:
    with pytest.raises(ValueError, match="one of the two"):
        Call()
    with pytest.raises(ValueError, match="one of the two"):
        Call(messages=({"role": "user", "content": "x"},), prompt="y")


@pytest.mark.parametrize(
    "guide",
    [
        Guide.json_object(),
        Guide.json_schema({"type": "object", "properties": {"é": {"type": "integer"}}}),
        Guide.regex("a+"),
        Guide.choice(["yes", "no"]),
        Guide.grammar('root ::= "a"'),
        Guide.structural_tag({"structures": [{"begin": "<a>", "schema": {}, "end": ""}], "triggers": ["<a>"]}),
    ],
    ids=lambda guide: guide.type,
)
@pytest.mark.parametrize("method", ["chat", "complete"])
def test_guide_when_given_then_reaches_the_text_model(server: Server, method: str, guide: Guide) -> None:
    ask(server, method, "hi", guide=guide)
    if server.is_http:
        assert server.gateway.backend.requests[-1].guide == guide
    else:
        sent = server.triton.requests[-1]
        assert (sent["guided_decoding_guide_type"].item(), sent["guided_decoding_guide"].item()) == (guide.type, guide.text)


TOOLS = (Tool("now"), Tool("add", "Two numbers", {"type": "object", "properties": {"a": {"type": "integer"}}}))


@pytest.mark.parametrize(
    ("choice", "use", "pieces"),
    [
        (
            "auto",
            ToolUse(TOOLS, "auto", ("now", "add")),
            ["Hm.<tool_", 'call>\n{"name": "add", "arguments": {"a"', ": 1}}\n</tool_call>"],
        ),
        ("required", ToolUse(TOOLS, "required", ("now", "add")), ['[{"name": "add", "arguments": {"a"', ": 1}}]"]),
        ("add", ToolUse(TOOLS, "named", ("add",)), ['{"a"', ": 1}"]),
    ],
)
def test_tools_when_called_then_typed_calls(server: Server, choice: str, use: ToolUse, pieces: list[str]) -> None:
    server.gateway.backend.script = gateway_fakes.says(*pieces)
    ends = [""] * (len(pieces) - 1) + ["stop"]
    server.triton.answers = lambda tensors, context: map(triton_fakes.response, pieces, ends)
    answer: Answer = ask(server, "chat", "hi", tools=TOOLS, tool_choice=choice)
    (call,) = answer.tool_calls
    assert (call.name, call.arguments, answer.finish_reason) == ("add", '{"a": 1}', "tool_calls")
    assert answer.text == ("Hm." if choice == "auto" else "")
    assert answer.latency.ttft_s is not None
    message = answer.choices[0].message
    assert message["content"] == (answer.text or None)
    assert message["tool_calls"][0]["id"] == call.id
    if server.is_http:
        asked = server.gateway.backend.requests[-1]
        assert (asked.tools, asked.guide) == (use.prompt_json, use.guide)
    else:
        sent = server.triton.requests[-1]
        assert (sent["tools"].item(), sent["guided_decoding_guide"].item()) == (use.prompt_json, use.guide.text)


def test_tools_beside_raw_text_then_value_error() -> None:
    with pytest.raises(ValueError, match="messages"):
        Call(prompt="x", tools=ToolUse(TOOLS, "auto", ("now",)))
