"""Good answers of the gateway: bodies, events, usage, headers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator

import httpx
import openai
import pytest

from tandem_client.text import TextChunk, TextRequest
from tests.unit.gateway_fakes import FakeBackend, RunningGateway, chunk, events, running_gateway, says


@pytest.fixture(name="shared", scope="module")
def _shared() -> Iterator[RunningGateway]:
    with running_gateway(FakeBackend()) as gateway:
        yield gateway


@pytest.fixture(name="backend")
def _backend(shared: RunningGateway) -> FakeBackend:
    return shared.backend.reset()


@pytest.fixture(name="gateway")
def _gateway(shared: RunningGateway, backend: FakeBackend) -> RunningGateway:
    return shared


def usage_of(prompt: int, completion: int) -> dict[str, object]:
    details = {"cached_tokens": 0}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": details,
        "completion_tokens_details": {"reasoning_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
    }


def test_chat_when_not_streamed_then_has_openai_form(gateway: RunningGateway) -> None:
    response = gateway.chat()
    body = response.json()
    assert response.status_code == 200
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello world", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"] == usage_of(7, 2)
    assert body["model"] == "tandem-fast"
    assert body["system_fingerprint"] is None


def test_chat_when_answered_then_headers_name_path_engine_and_decision(gateway: RunningGateway) -> None:
    for stream in (False, True):
        headers = gateway.chat(stream=stream).headers
        assert headers["x-tandem-path"] == "fast"
        assert headers["x-tandem-engine"] == "fast_int4"
        assert headers["x-tandem-decision"] == "rule: short prompt, 0.1 ms"
        assert int(headers["openai-processing-ms"]) >= 0
        assert headers["x-request-id"].startswith("req-")


def test_chat_when_streamed_then_events_come_in_openai_order(gateway: RunningGateway) -> None:
    response = gateway.chat(stream=True)
    got = events(response.text)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert got[-1] == "[DONE]"
    assert [event["choices"][0]["delta"] for event in got[:-1]] == [
        {"role": "assistant", "content": ""},
        {"content": "Hello"},
        {"content": " world"},
        {},
    ]
    assert [event["choices"][0]["finish_reason"] for event in got[:-1]] == [None, None, None, "stop"]
    assert all("usage" not in event for event in got[:-1])
    assert response.text.count("[DONE]") == 1


def test_usage_event_when_asked_for_then_is_last_without_choices_and_equal(gateway: RunningGateway) -> None:
    got = events(gateway.chat(stream=True, stream_options={"include_usage": True}).text)
    assert got[-2]["choices"] == []
    assert got[-2]["usage"] == gateway.chat().json()["usage"]
    assert all(event["usage"] is None for event in got[:-2])


def test_n_when_three_then_every_choice_has_one_role_and_one_end(backend: FakeBackend, gateway: RunningGateway) -> None:
    got = events(gateway.chat(n=3, seed=1, stream=True, stream_options={"include_usage": True}).text)
    plain = gateway.chat(n=3, seed=1).json()
    for index in range(3):
        mine = [event["choices"][0] for event in got[:-2] if event["choices"][0]["index"] == index]
        assert mine[0]["delta"].get("role") == "assistant"
        assert [choice["finish_reason"] for choice in mine if choice["finish_reason"]] == ["stop"]
        assert mine[-1]["finish_reason"] == "stop"
        text = "".join(choice["delta"].get("content", "") for choice in mine)
        assert text == plain["choices"][index]["message"]["content"]
    assert got[-2]["usage"] == plain["usage"] == usage_of(7, 6)
    assert backend.requests[0].sampling.num_return_sequences == 3


def test_completion_when_streamed_and_not_then_text_is_equal(gateway: RunningGateway) -> None:
    plain = gateway.complete().json()
    got = events(gateway.complete(stream=True).text)
    assert plain["object"] == "text_completion"
    assert "".join(event["choices"][0]["text"] for event in got[:-1]) == plain["choices"][0]["text"] == "Hello world"
    assert got[-2]["choices"][0]["finish_reason"] == "stop"


def test_completion_when_two_prompts_then_choices_are_numbered_by_prompt(backend: FakeBackend, gateway: RunningGateway) -> None:
    body = gateway.complete(prompt=["a", "b"], n=2).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert backend.requests[-1].prompts == ("a", "b")
    assert body["usage"]["prompt_tokens"] == 14


def test_log_probs_when_asked_for_then_have_both_api_forms(backend: FakeBackend, gateway: RunningGateway) -> None:
    entry = {
        "token": "yes",
        "bytes": [121, 101, 115],
        "logprob": -0.5,
        "top_logprobs": [{"token": "yes", "bytes": None, "logprob": -0.5}],
    }

    async def script(request: TextRequest) -> AsyncIterator[TextChunk]:
        yield chunk("yes", "", count=1, content=json.dumps([entry]))
        yield chunk("yes", "stop", count=2, content=json.dumps([entry]))

    backend.script = script
    chat = gateway.chat(logprobs=True, top_logprobs=1).json()["choices"][0]["logprobs"]
    assert chat == {"content": [entry, entry], "refusal": None}
    legacy = gateway.complete(logprobs=1).json()["choices"][0]["logprobs"]
    assert legacy["tokens"] == ["yes", "yes"]
    assert legacy["token_logprobs"] == [-0.5, -0.5]
    assert legacy["top_logprobs"] == [{"yes": -0.5}] * 2
    assert legacy["text_offset"] == [0, 3]
    streamed = events(gateway.complete(logprobs=1, stream=True).text)
    assert [event["choices"][0]["logprobs"]["text_offset"] for event in streamed[:-1]] == [[0], [3]]


def test_held_back_bytes_when_chunk_is_empty_then_no_event_is_sent(backend: FakeBackend, gateway: RunningGateway) -> None:
    backend.script = says("", "é", "")
    got = events(gateway.chat(stream=True).text)
    assert [event["choices"][0]["delta"].get("content") for event in got[:-1]] == ["", "é", None]


def test_sampling_when_given_then_reaches_the_backend_under_tensor_names(backend: FakeBackend, gateway: RunningGateway) -> None:
    gateway.chat(
        max_completion_tokens=9, temperature=0.5, top_p=0.9, top_k=-1, min_p=0.1, seed=-1, stop="x", presence_penalty=1,
        frequency_penalty=-1, repetition_penalty=1.1, ignore_eos=True, min_tokens=2, logit_bias={"5": 1, "6": -2},
        metadata={"task": "code", "source": "ide"}, model="tandem-slow",
    )  # fmt: skip
    request = backend.requests[-1]
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (9, 0.5, 0.9, 0, 0.1)
    assert (sampling.seed, sampling.stop_words, sampling.ignore_eos, sampling.min_tokens) == (2**64 - 1, ("x",), True, 2)
    assert (sampling.logit_bias_ids, sampling.logit_bias_values) == ((5, 6), (1, -2))
    assert (request.path, request.task, request.source, request.api_path) == ("slow", "code", "ide", "/v1/chat/completions")


def test_defaults_when_nothing_is_given_then_follow_openai(backend: FakeBackend, gateway: RunningGateway) -> None:
    gateway.chat()
    chat = backend.requests[-1].sampling
    gateway.complete()
    complete = backend.requests[-1].sampling
    assert (chat.temperature, chat.max_tokens) == (1.0, None)
    assert (complete.temperature, complete.max_tokens) == (1.0, 16)
    assert chat.seed != complete.seed


def test_task_header_when_no_metadata_then_is_the_task(backend: FakeBackend, gateway: RunningGateway) -> None:
    gateway.http.post("/v1/completions", json={"model": "tandem", "prompt": "x"}, headers={"x-tandem-task": "translation"})
    assert backend.requests[-1].task == "translation"


def test_request_id_when_sent_to_the_backend_then_is_minted_per_request(backend: FakeBackend, gateway: RunningGateway) -> None:
    ids = {
        gateway.http.post("/v1/completions", json={"model": "tandem", "prompt": "x"}, headers={"x-request-id": "same"}).json()["id"]
        for _ in range(3)
    }
    assert len(ids) == 3
    assert ids == {request.request_id for request in backend.requests}


def test_models_when_listed_then_each_can_be_read(gateway: RunningGateway) -> None:
    listed = gateway.http.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["tandem", "tandem-fast", "tandem-slow"]
    for model in listed["data"]:
        assert gateway.http.get(f"/v1/models/{model['id']}").json() == model


def test_openai_client_when_used_then_reads_answers_streams_and_models(gateway: RunningGateway) -> None:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0) as client:
        answer = client.chat.completions.create(model="tandem", messages=[{"role": "user", "content": "hi"}])
        assert answer.choices[0].message.content == "Hello world"
        stream = client.chat.completions.create(
            model="tandem", messages=[{"role": "user", "content": "hi"}], stream=True, stream_options={"include_usage": True}
        )
        parts = list(stream)
        assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == "Hello world"
        assert parts[-1].usage is not None
        assert client.completions.create(model="tandem", prompt="x").choices[0].text == "Hello world"
        assert len(client.models.list().data) == 3
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("gpt-5")


def test_ping_when_backend_is_silent_then_keeps_the_stream_alive() -> None:
    with running_gateway(FakeBackend(says("a", "b", delay_s=0.3)), ping_interval_s=0.1) as gateway:
        text = gateway.chat(stream=True).text
    assert ": ping\n\n" in text
    assert events(text)[-1] == "[DONE]"


def test_http_connection_when_used_again_then_serves_the_next_request(gateway: RunningGateway) -> None:
    with httpx.Client(base_url=gateway.url, limits=httpx.Limits(max_connections=1)) as http:
        for _ in range(3):
            assert http.post("/v1/completions", json={"model": "tandem", "prompt": "x"}).status_code == 200
