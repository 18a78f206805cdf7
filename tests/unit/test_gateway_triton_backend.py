"""The Triton backend against a gRPC server of the same protocol: tensors, codes, stop on cancel."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tandem.errors import ContextLengthExceeded, TandemError, to_wire
from tandem_client.text import Sampling, TextRequest
from tandem_gateway.triton_backend import TritonAddress, TritonBackend
from tests.unit.gateway_fakes import wait_until
from tests.unit.triton_fakes import FakeTriton, endless, response, running_triton

REQUEST = TextRequest(request_id="r1", messages='[{"role":"user","content":"hi"}]', stream=True)


@pytest.fixture(name="triton")
def _triton() -> Iterator[FakeTriton]:
    with running_triton() as fake:
        yield fake


def use(port: int, call: Callable[[TritonBackend], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        backend = TritonBackend(TritonAddress(f"127.0.0.1:{port}"))
        try:
            return await call(backend)
        finally:
            await backend.close()

    return asyncio.run(run())


async def read_all(backend: TritonBackend, request: TextRequest = REQUEST) -> list[Any]:
    return [chunk async for chunk in backend.generate(request)]


def error_of(triton: FakeTriton) -> TandemError:
    with pytest.raises(TandemError) as caught:
        use(triton.port, read_all)
    return caught.value


def test_request_when_sent_then_tensors_follow_the_protocol(triton: FakeTriton) -> None:
    sampling = Sampling(
        max_tokens=5, temperature=0.5, seed=2**64 - 1, stop_words=("a", "bé"), num_return_sequences=2, ignore_eos=True,
        logit_bias_ids=(1, 2), logit_bias_values=(0.5, -1.0),
    )  # fmt: skip
    request = TextRequest(request_id="r2", prompts=("x", "y z"), path="slow", task="code", stream=False, sampling=sampling)
    use(triton.port, lambda backend: read_all(backend, request))
    got = triton.requests[0]
    assert got["id"] == "r2"
    assert got["text_input"].tolist() == [["x"], ["y z"]]
    assert got["stop_words"].tolist() == [["a", "bé"], ["a", "bé"]]
    assert got["seed"].tolist() == [[2**64 - 1]] * 2
    assert got["logit_bias_values"].tolist() == [[0.5, -1.0]] * 2
    assert got["stream"].tolist() == [[False]] * 2
    assert got["path"].tolist() == [["slow"], ["slow"]]
    assert "messages" not in got
    assert "top_k" not in got


def test_answer_when_streamed_then_chunks_carry_every_output(triton: FakeTriton) -> None:
    chunks = use(triton.port, read_all)
    assert [(chunk.text, chunk.finish_reason, chunk.num_output_tokens) for chunk in chunks] == [
        ("Hello", "", 1),
        (" world", "stop", 2),
    ]
    assert (chunks[0].path, chunks[0].engine, chunks[0].decision, chunks[0].num_input_tokens) == (
        "fast",
        "fast_int4",
        "rule: test",
        7,
    )
    assert triton.stops == []


def test_error_when_in_the_stream_message_then_keeps_its_code(triton: FakeTriton) -> None:
    text = f"in ensemble 'tandem', {to_wire(ContextLengthExceeded('messages', 9000, 8192))}"
    triton.answers = lambda tensors, context: iter([service_pb2.ModelStreamInferResponse(error_message=text)])
    error = error_of(triton)
    assert (error.code, error.http_status, error.field) == ("context_length_exceeded", 400, "messages")


def test_error_when_a_grpc_status_then_keeps_its_code(triton: FakeTriton) -> None:
    def abort(tensors: dict[str, Any], context: Any) -> Iterator[Any]:
        yield from ()
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "[tandem:invalid_value:logit_bias] logit_bias: got 49152; use lower ids")

    triton.answers = abort
    error = error_of(triton)
    assert (error.code, error.field, error.http_status) == ("invalid_value", "logit_bias", 400)


def test_error_when_not_ours_then_caller_gets_no_inner_text(triton: FakeTriton) -> None:
    triton.answers = lambda tensors, context: iter([service_pb2.ModelStreamInferResponse(error_message="/inner/path broke")])
    error = error_of(triton)
    assert error.http_status == 500
    assert "inner" not in error.message


def test_error_when_server_is_not_there_then_503_and_retryable() -> None:
    with pytest.raises(TandemError) as caught:
        use(1, read_all)
    assert (caught.value.http_status, caught.value.is_retryable) == (503, True)


def test_error_when_server_goes_in_the_middle_then_engine_failure(triton: FakeTriton) -> None:
    def die(tensors: dict[str, Any], context: Any) -> Iterator[Any]:
        yield response("one")
        context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    triton.answers = die
    assert error_of(triton).code == "engine_failure"


def test_error_when_an_output_is_missing_then_engine_failure(triton: FakeTriton) -> None:
    broken = response("x")
    broken.infer_response.outputs[0].name = "other"
    triton.answers = lambda tensors, context: iter([broken])
    assert "contract" in error_of(triton).message


def test_iterator_when_closed_early_then_stop_is_sent_under_the_same_id(triton: FakeTriton) -> None:
    triton.answers = endless

    async def close_early(backend: TritonBackend) -> None:
        async with aclosing(backend.generate(REQUEST)) as chunks:
            await anext(chunks)

    use(triton.port, close_early)
    assert set(triton.stops) == {"r1"}


def test_task_when_cancelled_before_the_first_answer_then_stop_is_sent(triton: FakeTriton) -> None:
    def mute(tensors: dict[str, Any], context: Any) -> Iterator[Any]:
        yield from ()
        while not triton.stops:
            time.sleep(0.005)

    triton.answers = mute

    async def cancel(backend: TritonBackend) -> None:
        task = asyncio.create_task(read_all(backend))
        await asyncio.to_thread(wait_until, lambda: bool(triton.requests))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    use(triton.port, cancel)
    assert set(triton.stops) == {"r1"}


def test_request_when_it_ends_by_itself_then_no_stop_is_sent(triton: FakeTriton) -> None:
    async def read_some(backend: TritonBackend) -> None:
        async with aclosing(backend.generate(REQUEST)) as chunks:
            await anext(chunks)
            await asyncio.sleep(0.2)

    use(triton.port, read_some)
    assert triton.stops == []


def test_stop_when_it_comes_too_early_then_is_sent_again(triton: FakeTriton) -> None:
    def deaf(tensors: dict[str, Any], context: Any) -> Iterator[Any]:
        yield response("one")
        while len(triton.stops) < 3:
            time.sleep(0.005)

    triton.answers = deaf

    async def close_early(backend: TritonBackend) -> None:
        async with aclosing(backend.generate(REQUEST)) as chunks:
            await anext(chunks)

    use(triton.port, close_early)
    assert triton.stops == ["r1"] * 3


def test_health_when_some_models_are_not_ready_then_names_them(triton: FakeTriton) -> None:
    assert use(triton.port, lambda backend: backend.health()).is_ready
    triton.is_ready = False
    health = use(triton.port, lambda backend: backend.health())
    assert health.is_live
    assert not health.is_ready
    assert [name for name, ready in health.parts.items() if not ready] == ["slow"]


def test_health_when_server_is_not_there_then_not_live() -> None:
    assert not use(1, lambda backend: backend.health()).is_live
