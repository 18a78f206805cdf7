"""The ensemble ``tandem`` on the real server: what Triton 2.51 does with optional inputs, rows, errors, stops and cancels."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tandem.errors import from_wire
from tandem.protocol import ROUTER
from tests.e2e.conftest import RunningTriton
from tests.e2e.test_triton_server import assert_idle, gauge
from tests.e2e.triton_calls import Reply, Stream, ask

pytestmark = [pytest.mark.e2e, pytest.mark.weights]
QUESTION = json.dumps([{"role": "user", "content": "What is the capital of France?"}])


def texts(*rows: str) -> np.ndarray:
    return np.array([[row.encode()] for row in rows], object)


def tensors(*, messages: str = QUESTION, max_tokens: int = 12, stream: bool = True, path: str = "fast", **more: np.ndarray):
    return {
        "messages": texts(messages),
        "max_tokens": np.array([[max_tokens]], np.int32),
        "stream": np.array([[stream]]),
        "path": texts(path),
        **more,
    }


def text_of(replies: list[Reply]) -> str:
    assert replies[-1].error is None, replies[-1].error
    return "".join(reply.outputs["text_output"].item().decode() for reply in replies if reply.outputs)


def reasons_of(replies: list[Reply]) -> list[str]:
    found = [reply.outputs["finish_reason"].item().decode() for reply in replies if reply.outputs]
    return [reason for reason in found if reason]


def stop(url: str, model: str, request_id: str) -> list[Reply]:
    return ask(url, model, {"stop": np.array([[True]])}, request_id)


def test_tandem_simple(triton: RunningTriton):
    """One text_input and nothing else: every other input of the ensemble is optional."""
    replies = ask(triton.config.grpc_url, "tandem", {"text_input": texts("The capital of France is")})
    assert text_of(replies)
    data = [reply for reply in replies if reply.outputs]
    assert len(data) == 1
    assert set(data[0].outputs) == {spec.name for spec in ROUTER.outputs}


@pytest.mark.parametrize("path", ["fast", "slow"])
def test_tandem_stream(triton: RunningTriton, path: str):
    url = triton.config.grpc_url
    streamed = ask(url, "tandem", tensors(path=path))
    whole = ask(url, "tandem", tensors(path=path, stream=False))
    assert text_of(streamed) == text_of(whole)
    assert "Paris" in text_of(whole)
    assert reasons_of(streamed) == reasons_of(whole)
    assert len([reply for reply in streamed if reply.outputs]) > 2
    # The final flag comes in a response of its own, without tensors: a client must opt in to see it.
    assert streamed[-1].outputs == {}
    assert {reply.outputs["served_path"].item().decode() for reply in streamed if reply.outputs} == {path}


def test_tandem_all_params(triton: RunningTriton):
    more = {
        "stop_words": np.array([[b"\n\n\n", b"@@"]], object),
        "bad_words": np.array([[b"Berlin"]], object),
        "top_k": np.array([[20]], np.int32),
        "top_p": np.array([[0.9]], np.float32),
        "temperature": np.array([[0.7]], np.float32),
        "repetition_penalty": np.array([[1.1]], np.float32),
        "presence_penalty": np.array([[0.1]], np.float32),
        "frequency_penalty": np.array([[0.1]], np.float32),
        "min_tokens": np.array([[2]], np.int32),
        "seed": np.array([[11]], np.uint64),
        "num_return_sequences": np.array([[2]], np.int32),
        "return_log_probs": np.array([[True]]),
        "min_p": np.array([[0.01]], np.float32),
        "top_logprobs": np.array([[2]], np.int32),
        "logit_bias_ids": np.array([[5, 6]], np.int32),
        "logit_bias_values": np.array([[-1.0, 1.0]], np.float32),
        "task": texts("extraction"),
        "api_path": texts("/v1/chat/completions"),
        "source": texts("test"),
    }
    url = triton.config.grpc_url
    first, second = ask(url, "tandem", tensors(stream=False, **more)), ask(url, "tandem", tensors(stream=False, **more))
    assert text_of(first) == text_of(second)
    assert len(reasons_of(first)) == 2
    for reply in first[:-1]:
        content = json.loads(reply.outputs["log_probs_content"].item())
        assert len(content) == reply.outputs["output_log_probs"].size == reply.outputs["num_output_tokens"].item()
        assert all(len(token["top_logprobs"]) <= 2 and token["logprob"] <= 0 for token in content)


def test_tandem_rows_when_two_then_each_answered_under_its_index(triton: RunningTriton):
    url = triton.config.grpc_url
    prompts = ("The capital of France is", "One, two, three,")
    alone = [text_of(ask(url, "tandem", {"text_input": texts(p), "max_tokens": np.array([[6]], np.int32)})) for p in prompts]
    batch = {
        "text_input": texts(*prompts),
        "max_tokens": np.array([[6], [6]], np.int32),
        "stream": np.array([[True], [True]]),
    }
    joined = {0: "", 1: ""}
    for reply in ask(url, "tandem", batch):
        if reply.outputs:
            joined[int(reply.outputs["batch_index"].item())] += reply.outputs["text_output"].item().decode()
    assert [joined[0], joined[1]] == alone


def test_tandem_load(triton: RunningTriton):
    url = triton.config.grpc_url
    alone = text_of(ask(url, "tandem", tensors()))
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda _: text_of(ask(url, "tandem", tensors())), range(16))) == [alone] * 16
    assert_idle(triton, "fast_int4", "fast_int8")


@pytest.mark.parametrize("model", ["tandem", "router"])
def test_stop_when_sent_under_the_id_then_ends_with_cancelled(triton: RunningTriton, model: str):
    """BC-24 in small. Through the ensemble a stop passes preprocessing with a prompt of zero tokens."""
    url = triton.config.grpc_url
    request = tensors(max_tokens=3000, ignore_eos=np.array([[True]]), path="slow")
    if model == "router":
        del request["messages"], request["path"]
        request |= {"input_ids": np.array([[504, 3575]], np.int32), "input_lengths": np.array([[2]], np.int32)}
        request |= {"route_features": texts(route_features(triton))}
    with Stream(url, model, request, f"stop-{model}") as stream:
        stream.next()
        stopping = {"stop": np.array([[True]])}
        if model == "router":
            stopping |= {key: request[key] for key in ("input_ids", "input_lengths", "route_features")}
        assert ask(url, model, stopping, f"stop-{model}")[-1].error is None
        assert reasons_of(list(stream.replies())) == ["cancelled"]
    assert_idle(triton, "slow", "fast_int4", "fast_int8")


def route_features(triton: RunningTriton) -> str:
    """What preprocessing says of a prompt; it is not decoupled, so plain HTTP infer works."""
    body = {"inputs": [{"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["hello"]}]}
    request = urllib.request.Request(f"{triton.config.http_url}/v2/models/preprocessing/infer", data=json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10) as response:
        outputs = {output["name"]: output["data"] for output in json.load(response)["outputs"]}
    return outputs["route_features"][0]


def test_stop_when_the_id_is_unknown_then_no_error(triton: RunningTriton):
    assert stop(triton.config.grpc_url, "tandem", "nobody")[-1].error is None


def test_stop_when_it_overtakes_its_request_then_the_request_ends_at_once(triton: RunningTriton):
    url = triton.config.grpc_url
    stop(url, "tandem", "overtaken")
    replies = list(ask(url, "tandem", tensors(max_tokens=3000, ignore_eos=np.array([[True]])), "overtaken"))
    assert reasons_of(replies) == ["cancelled"]
    assert max(int(reply.outputs["num_output_tokens"].item()) for reply in replies if reply.outputs) < 1000


def test_client_when_it_cancels_the_router_then_the_engine_stops(triton: RunningTriton):
    request = {
        "input_ids": np.array([[504, 3575]], np.int32),
        "input_lengths": np.array([[2]], np.int32),
        "route_features": texts(route_features(triton)),
        "max_tokens": np.array([[3000]], np.int32),
        "stream": np.array([[True]]),
        "ignore_eos": np.array([[True]]),
    }
    stream = Stream(triton.config.grpc_url, "router", request, "router-cancel")
    stream.next()
    stream.cancel()
    assert_idle(triton, "slow", "fast_int4", "fast_int8")


def test_client_when_it_cancels_the_ensemble_then_only_a_stop_ends_it(triton: RunningTriton):
    """Triton 2.51 does not hand a client's cancel on to the steps of an ensemble; that is why the gateway sends a stop.

    If this test fails because the engine is idle without the stop, Triton has learned it and the gateway's stop may go.
    """
    url = triton.config.grpc_url
    stream = Stream(url, "tandem", tensors(max_tokens=3000, ignore_eos=np.array([[True]]), path="slow"), "ensemble-cancel")
    while gauge(triton, "nv_trt_llm_request_metrics", "slow", "scheduled") == 0:  # gauges lag behind the first token
        stream.next()
    stream.cancel()
    with pytest.raises(AssertionError):
        assert_idle(triton, "slow", timeout_s=1.5)
    stop(url, "tandem", "ensemble-cancel")
    assert_idle(triton, "slow")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_tokens": np.array([[0]], np.int32)}, "max_tokens"),
        ({"messages": texts("[]")}, "messages"),
        ({"messages": texts("not json")}, "messages"),
        ({"messages": np.array([[b"\xff"]], object)}, "messages"),
        ({"text_input": texts("both")}, "text_input"),
        ({"temperature": np.array([[np.nan]], np.float32)}, "temperature"),
        ({"path": texts("sideways")}, "path"),
    ],
)
def test_tandem_invalid(triton: RunningTriton, change, field: str):
    """The error of a step arrives with a prefix of Triton's, which from_wire passes over."""
    url = triton.config.grpc_url
    replies = ask(url, "tandem", {**tensors(), **change})
    assert replies[-1].error is not None
    error = from_wire(replies[-1].error.message())
    assert error is not None, replies[-1].error.message()
    assert error.field == field
    assert error.http_status == 400
    assert text_of(ask(url, "tandem", tensors()))


def test_http_when_generate_stream_then_events_with_text(triton: RunningTriton):
    body = json.dumps({"text_input": "The capital of France is", "max_tokens": 5, "stream": True, "id": "http-1"}).encode()
    request = urllib.request.Request(f"{triton.config.http_url}/v2/models/tandem/generate_stream", data=body)
    with urllib.request.urlopen(request, timeout=60) as response:
        lines = response.read().decode().splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert "".join(event["text_output"] for event in events)
    assert events[-1]["finish_reason"] in ("stop", "length")
