"""Bad requests: each is refused with field, value and remedy before any SSE byte, and harms nobody."""

from __future__ import annotations

import hashlib
import json
import logging
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tandem.errors import ContextLengthExceeded, EngineFailure, InvalidRequest, Overloaded, SetupError, from_wire, to_wire
from tandem_gateway.keys import hash_api_key, read_key_file
from tandem_gateway.settings import GatewaySettings
from tests.unit.gateway_fakes import CHAT, FakeBackend, RunningGateway, events, fails, running_gateway, says, wait_until


@pytest.fixture(name="shared", scope="module")
def _shared() -> Iterator[RunningGateway]:
    with running_gateway(FakeBackend()) as gateway:
        yield gateway


@pytest.fixture(name="gateway")
def _gateway(shared: RunningGateway) -> RunningGateway:
    shared.backend.reset()
    return shared


def connect(gateway: RunningGateway) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gateway.port))


def raw_post(gateway: RunningGateway, body: bytes, path: str = "/v1/chat/completions", **headers: str) -> Any:
    return gateway.http.post(path, content=body, headers={"content-type": "application/json", **headers})


BAD_CHAT: list[tuple[dict[str, Any], str, str]] = [
    ({"max_tokens": 0}, "max_tokens", "0"),
    ({"max_tokens": -1}, "max_tokens", "-1"),
    ({"max_tokens": 1.5}, "max_tokens", "1.5"),
    ({"max_tokens": "8"}, "max_tokens", '"8"'),
    ({"max_tokens": 2**31}, "max_tokens", "2147483648"),
    ({"max_tokens": 4, "max_completion_tokens": 5}, "max_completion_tokens", "5"),
    ({"stop": ""}, "stop", '""'),
    ({"stop": [""]}, "stop[0]", '""'),
    ({"stop": [7]}, "stop[0]", "7"),
    ({"messages": []}, "messages", "[]"),
    ({"messages": "hi"}, "messages", '"hi"'),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", '"king"'),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "null"),
    ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages[0].mood", "does not know"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type", '"image_url"'),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content", "Unicode"),
    ({"logit_bias": {"-1": 5}}, "logit_bias", "-1"),
    ({"logit_bias": {"999999999999": 1}}, "logit_bias", "999999999999"),
    ({"logit_bias": {"abc": 1}}, "logit_bias", "abc"),
    ({"logit_bias": {"7": 1000}}, "logit_bias.7", "1000"),
    ({"logit_bias": {"7": 1, "07": 2}}, "logit_bias", "07"),
    ({"temperature": 2.5}, "temperature", "2.5"),
    ({"temperature": True}, "temperature", "true"),
    ({"top_p": 0}, "top_p", "0"),
    ({"n": 0}, "n", "0"),
    ({"n": 17}, "n", "17"),
    ({"seed": 2**64}, "seed", str(2**64)),
    ({"min_tokens": 9, "max_tokens": 3}, "min_tokens", "9"),
    ({"stream": "yes"}, "stream", '"yes"'),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
    ({"top_logprobs": 3}, "top_logprobs", "3"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "21"),
    ({"functions": [{"name": "f"}]}, "functions", "use tools"),
    ({"function_call": {"name": "f"}}, "function_call", "use tools"),
    ({"store": True}, "store", "True"),
    ({"service_tier": "flex"}, "service_tier", "flex"),
    ({"reasoning_effort": "high"}, "reasoning_effort", "high"),
    ({"colour": "red"}, "colour", "does not know"),
    ({"metadata": {"task": 5}}, "metadata.task", "5"),
    ({"metadata": {"task": "x\ny"}}, "metadata.task", "printable"),
    ({"model": 5}, "model", "5"),
]


@pytest.mark.parametrize(("fields", "param", "said"), BAD_CHAT, ids=[str(case[0])[:40] for case in BAD_CHAT])
def test_chat_when_a_field_is_wrong_then_400_names_field_and_value(
    gateway: RunningGateway, fields: dict[str, Any], param: str, said: str
) -> None:
    body = json.dumps({**CHAT, "stream": True, **fields} if "stream_options" not in fields else {**CHAT, **fields}).encode()
    response = raw_post(gateway, body)
    error = response.json()["error"]
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(param.split("[")[0].split(".")[0])
    assert said in error["message"]
    assert gateway.backend.requests == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt[0]"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": ["a"] * 9}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"messages": []}, "messages"),
    ],
)
def test_completion_when_a_field_is_wrong_then_400_names_it(gateway: RunningGateway, fields: dict[str, Any], param: str) -> None:
    response = gateway.complete(**fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": None, "seed": None, "n": None, "tools": None},
        {"user": "u", "store": False, "parallel_tool_calls": True, "response_format": {"type": "text"}},
        {"service_tier": "auto", "tool_choice": "none", "modalities": ["text"], "metadata": {"customer": "7"}},
        {"messages": [{"role": "user", "content": ""}]},
        {"messages": [{"role": "system", "content": "be short"}]},
        {"messages": [{"role": "assistant", "content": "x", "refusal": None, "annotations": []}]},
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": []}]},
        {"top_logprobs": 0},
        {"logprobs": False, "top_logprobs": 0},
        {"tools": [], "tool_choice": "auto"},
        {"max_tokens": 2**31 - 1},
        {"stop": []},
        {"logit_bias": {"49151": 1}},
    ],
    ids=str,
)
def test_chat_when_fields_change_nothing_or_are_null_then_200(gateway: RunningGateway, fields: dict[str, Any]) -> None:
    assert gateway.chat(**fields).status_code == 200


def test_model_when_unknown_then_404(gateway: RunningGateway) -> None:
    response = gateway.chat(model="gpt-4o")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert gateway.http.get("/v1/models/gpt-4o").json()["error"]["param"] == "model"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"[]", "array"),
        (b"null", "null"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":-Infinity}', "-Infinity"),
        (b'{"a":1e999}', "1e999"),
        (b'{"a":' + b"1" * 5000 + b"}", "digits"),
        (b'{"model":"tandem","model":"tandem-slow"}', "twice"),
        (b'{"a":"\xff"}', "UTF-8"),
        (b'{"a":' + b"[" * 40 + b"]" * 40 + b"}", "nested"),
        (b"[" * 400_000, "nested"),
        (b'{"a":' * 100_000, "nested"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_body_when_not_strict_json_then_400_says_why(gateway: RunningGateway, body: bytes, said: str) -> None:
    response = raw_post(gateway, body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"
    assert said in response.json()["error"]["message"]


def test_body_when_too_large_then_413_names_the_limit(gateway: RunningGateway) -> None:
    body = json.dumps({**CHAT, "messages": [{"role": "user", "content": "a" * (5 << 20)}]}).encode()
    response = raw_post(gateway, body)
    assert response.status_code == 413
    assert str(1 << 20) in response.json()["error"]["message"]
    assert gateway.chat().status_code == 200


def test_body_when_too_large_and_chunked_then_413(gateway: RunningGateway) -> None:
    parts = (b" " * 65536 for _ in range(80))
    response = gateway.http.post("/v1/chat/completions", content=parts, headers={"content-type": "application/json"})
    assert response.status_code == 413


def test_body_when_it_does_not_arrive_then_408() -> None:
    with (
        running_gateway(FakeBackend(), body_timeout_s=0.1) as gateway,
        socket.create_connection(("127.0.0.1", gateway.port)) as raw,
    ):
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{")
        assert raw.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_content_type_when_not_json_then_415(gateway: RunningGateway) -> None:
    response = raw_post(gateway, b"{}", **{"content-type": "text/plain"})
    assert (response.status_code, response.json()["error"]["param"]) == (415, "content-type")


def test_route_when_unknown_or_method_wrong_then_openai_error_form(gateway: RunningGateway) -> None:
    missing = gateway.http.get("/v2/nothing")
    wrong = gateway.http.get("/v1/chat/completions")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["error"]["code"], wrong.headers["allow"]) == (405, "method_not_allowed", "POST")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code", "param"),
    [
        (from_wire(to_wire(ContextLengthExceeded("messages", 20013, 8192))), 400, "context_length_exceeded", "messages"),
        (InvalidRequest("logit_bias", "49152", "use ids below 49152"), 400, "invalid_value", "logit_bias"),
        (Overloaded("the queue is full; try again"), 503, "overloaded", None),
        (EngineFailure("the engine failed; try again"), 500, "engine_failure", None),
    ],
    ids=["context", "invalid", "overloaded", "failure"],
)
def test_backend_when_it_refuses_before_the_first_token_then_status_of_its_error(
    gateway: RunningGateway, error: Exception, status: int, code: str, param: str | None, stream: bool
) -> None:
    gateway.backend.script = fails(error)
    response = gateway.chat(stream=stream)
    body = response.json()["error"]
    assert (response.status_code, body["code"], body["param"]) == (status, code, param)
    assert ("retry-after" in response.headers) == (status == 503)


@pytest.mark.parametrize(
    ("tensor", "api", "field"),
    [
        ("logit_bias_ids", "chat", "logit_bias"),
        ("input_ids", "chat", "messages"),
        ("input_ids", "complete", "prompt"),
        ("text_input", "complete", "prompt"),
        ("stop_words", "chat", "stop"),
        ("num_return_sequences", "chat", "n"),
        ("messages[0].content", "chat", "messages[0].content"),
    ],
)
def test_backend_when_it_names_a_tensor_then_caller_reads_the_api_field(
    gateway: RunningGateway, tensor: str, api: str, field: str
) -> None:
    gateway.backend.script = fails(InvalidRequest(tensor, "7", "use 8"))
    error = getattr(gateway, api)().json()["error"]
    assert (error["param"], error["message"]) == (field, f"{field}: got 7; use 8")


def test_backend_when_it_raises_something_unexpected_then_500_without_inner_text(gateway: RunningGateway) -> None:
    gateway.backend.script = fails(RuntimeError("secret /inner/path"))
    response = gateway.chat()
    assert response.status_code == 500
    assert "secret" not in response.text


def test_stream_when_the_backend_fails_in_the_middle_then_one_error_event_and_a_clean_end(gateway: RunningGateway) -> None:
    failed = gateway.metric('tandem_gateway_requests_total{operation="chat",outcome="failed"}')
    gateway.backend.script = fails(EngineFailure("the engine failed; try again"), "one", " two", " three")
    response = gateway.chat(stream=True)
    got = events(response.text)
    assert got[-1]["error"] == {
        "message": "the engine failed; try again",
        "type": "server_error",
        "param": None,
        "code": "engine_failure",
    }
    assert "[DONE]" not in response.text
    assert all(event["choices"][0]["finish_reason"] is None for event in got[:-1])
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in got[:-1]) == "one two three"
    wait_until(lambda: gateway.metric('tandem_gateway_requests_total{operation="chat",outcome="failed"}') == failed + 1)


def test_stream_when_the_backend_breaks_its_contract_then_error_instead_of_made_up_end(gateway: RunningGateway) -> None:
    for finish in ("", "cancelled", "odd"):
        gateway.backend.script = says("a", "b", finish=finish)
        assert "error" in events(gateway.chat(stream=True).text)[-1]
        assert gateway.chat().status_code in (499, 500)


@pytest.mark.parametrize(
    ("given", "is_kept"),
    [
        ("ok-1.2_3", True),
        ("a" * 128, True),
        ("a" * 129, False),
        ("", False),
        ("a%0d%0aX-Evil: 1", False),
        ("a\x01b", False),
        ("a b", False),
        ("é", False),
    ],
)
def test_request_id_when_given_then_only_short_plain_ones_are_kept(gateway: RunningGateway, given: str, is_kept: bool) -> None:
    response = gateway.http.get("/healthz", headers={"x-request-id": given.encode("latin-1")})  # type: ignore[dict-item]
    assert (response.headers["x-request-id"] == given) == is_kept
    assert "x-evil" not in response.headers


def test_request_id_when_no_http_header_can_hold_it_then_is_refused(gateway: RunningGateway) -> None:
    with connect(gateway) as raw:
        # The server may answer and close while we still write.
        with suppress(ConnectionError):
            raw.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-request-id: " + b"a" * 1_000_000 + b"\r\n\r\n")
        with suppress(ConnectionError):
            assert raw.recv(4096).startswith(b"HTTP/1.1 400 ")
    assert gateway.http.get("/healthz").status_code == 200


def test_api_key_when_wrong_then_401_and_no_trace_of_it(caplog: pytest.LogCaptureFixture) -> None:
    key, good = "sk-test-0123456789abcdef", "sk-good"
    backend = FakeBackend()
    with caplog.at_level(logging.DEBUG), running_gateway(backend, api_keys=(hash_api_key(good),)) as gateway:
        for header in ({}, {"authorization": f"Bearer {key}"}, {"authorization": f"Basic {good}"}, {"authorization": key}):
            response = gateway.http.post("/v1/chat/completions", json=CHAT, headers=header)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()["error"]["code"] == "invalid_api_key"
            for secret in (key, key[8:], hashlib.sha256(key.encode()).hexdigest()):
                assert secret not in response.text
        assert gateway.http.post("/v1/chat/completions", json=CHAT, headers={"authorization": f"Bearer {good}"}).status_code == 200
        assert gateway.http.get("/v1/models").status_code == 401
        assert gateway.http.get("/healthz").status_code == 200
    assert key not in caplog.text
    assert hashlib.sha256(key.encode()).hexdigest() not in caplog.text
    assert len(backend.requests) == 1


def access_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tandem_gateway.access"]


def test_access_log_when_written_then_one_line_without_prompt(gateway: RunningGateway, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="tandem_gateway.access"):
        gateway.chat(messages=[{"role": "user", "content": "very-private"}])
        gateway.http.get("/secret-in-path?key=secret")
        wait_until(lambda: len(access_lines(caplog)) == 2)
    lines = sorted(access_lines(caplog), key=lambda line: "status=404" in line)
    assert "route=/v1/chat/completions status=200 outcome=ok" in lines[0]
    assert "route=unmatched status=404 outcome=rejected" in lines[1]
    assert all("private" not in line and "secret" not in line and "\n" not in line for line in lines)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"host": "0.0.0.0"}, "loopback"),
        ({"port": 70000}, "70000"),
        ({"api_keys": ("sk-clear",)}, "SHA-256"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"drain_grace_s": 0}, "drain_grace_s"),
    ],
)
def test_settings_when_wrong_then_one_sentence(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(SetupError, match=said) as caught:
        GatewaySettings(**fields)
    assert "sk-clear" not in str(caught.value)


def test_settings_when_keys_are_set_then_other_addresses_are_allowed() -> None:
    assert GatewaySettings(host="0.0.0.0", api_keys=(hash_api_key("k"),)).host == "0.0.0.0"


def test_key_file_when_read_then_hashes_without_comments(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# team a\n{hash_api_key('a')}\n\n  {hash_api_key('b')}  \n", encoding="utf-8")
    assert read_key_file(file) == (hash_api_key("a"), hash_api_key("b"))


def test_key_file_when_missing_then_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="api-key-file"):
        read_key_file(tmp_path / "none")
