"""The router adapter, with BLS children played by the engine adapter itself: both ends of the contract meet."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue
from types import SimpleNamespace

import numpy as np
import pytest

from tandem.config import RouterModelConfig
from tandem.errors import from_wire
from tandem.orchestration.route_counts import RouteCounts
from tandem.protocol import ENGINE, ROUTER
from tandem.types import EngineRequest, FinishReason, RequestId, SamplingParams
from tests.adapter.fake_pb_utils import InferenceRequest, InferenceResponse, Request, Tensor, TritonError
from tests.adapter.test_engine_model import SlowDecoder, engine_model, f32, flag, i32
from tests.factories import make_prompt
from tests.tiny_model import VOCAB_SIZE, PagedTinyDecoder, TinyModel
from tests.unit.orchestration_fakes import POLICY, TOKENIZER

ENGINE_OUTPUTS = tuple(spec.name for spec in ENGINE.outputs)
PROMPT = make_prompt(3, 7)


def play_child(model):
    """A BLS handler that runs a request on an engine adapter and hands its responses on as they come."""

    def handler(call: InferenceRequest):
        child = Request(call.tensors, call.request_id, tuple(call.requested_output_names))
        queue: SimpleQueue = SimpleQueue()
        original = child.sender.send

        def send(response=None, flags=0):
            original(response, flags)
            queue.put((response, flags))

        child.sender.send = send
        model.execute([child])
        is_last = False
        while not is_last:
            response, flags = queue.get(timeout=20)
            is_last = flags == 1
            if response is None:
                yield InferenceResponse([])
            elif response.has_error():
                yield InferenceResponse([], TritonError(response.error().message(), "INTERNAL"))  # as Triton 2.51 does
            else:
                wanted = set(call.requested_output_names)
                yield InferenceResponse([t for t in response.output_tensors() if t.name() in wanted])

    return handler


@contextmanager
def children(decoder=None, **changes):
    with engine_model(decoder, max_queue_size=64, **changes) as model:
        InferenceRequest.handlers = dict.fromkeys(("fast_int4", "fast_int8", "slow"), play_child(model))
        yield model


@contextmanager
def router_model(service=None, **changes):
    from tandem.orchestration.config import EngineInfo, RouterConfig
    from tandem.orchestration.service import RouterService
    from tandem.triton.bls import BlsEnginePort
    from tandem.triton.router_adapter import RouterModel

    values = {
        "name": "router",
        "engine_dirs": {},
        "max_seq_len": 96,
        "rules_file": None,
        "default_max_tokens": 8,
        "max_concurrent_requests": 8,
        "max_queue_size": 8,
        "cancellation_check_period_ms": 5,
        "max_in_flight": 16,
        "max_waiting": 128,
        "scheduling_policy": "slo",
        "slo_ttft_ms": 2000,
        "tokens_per_block": 4,
        "kv_cache_tokens": 1024,
        "engine_profile": "cpu",
        "engine_capabilities": {},
    }
    if service is None:
        engines = tuple(EngineInfo(name, 96, TOKENIZER) for name in ("fast_int4", "fast_int8", "slow"))
        service = RouterService(RouterConfig(engines, 8), POLICY, BlsEnginePort(VOCAB_SIZE, 4))
    model = RouterModel(RouterModelConfig(**{**values, **changes}), service)
    try:
        yield model
    finally:
        model.close()


def router_request(*prompts, id="r1", **tensors) -> Request:
    prompts = prompts or (PROMPT,)
    width = max(len(prompt) for prompt in prompts)
    ids = np.zeros((len(prompts), width), np.int32)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = prompt
    from tandem.routing.features import extract_features

    features = extract_features(
        "hello", num_prompt_tokens=width, num_turns=1, path="auto", task="", api_path="", source=""
    ).to_json()
    base = {
        "input_ids": ids,
        "input_lengths": np.array([[len(prompt)] for prompt in prompts], np.int32),
        "route_features": np.array([[features.encode()]] * len(prompts), object),
        "max_tokens": np.full((len(prompts), 1), 5, np.int32),
        "ignore_eos": np.ones((len(prompts), 1), bool),
    }
    return Request({**base, **tensors}, id, tuple(spec.name for spec in ROUTER.outputs))


def text_of(answer) -> str:
    return "".join(sent.outputs["text_output"].item().decode() for sent in answer if sent.outputs)


def reasons_of(answer) -> list[str]:
    found = [sent.outputs["finish_reason"].item().decode() for sent in answer if sent.outputs]
    return [reason for reason in found if reason]


def test_answer_when_streamed_then_same_text_as_whole_and_one_empty_final():
    with children(), router_model() as model:
        whole, streamed = router_request(), router_request(id="s", stream=np.ones((1, 1), bool))
        model.execute([whole, streamed])
        one, many = whole.wait(), streamed.wait()
    assert text_of(one) == text_of(many)
    assert reasons_of(one) == reasons_of(many) == ["length"]
    assert (one[-1].outputs, one[-1].error) == ({}, None)
    assert len(one) == 2


def test_chunk_when_encoded_then_has_every_output_with_its_type_and_shape():
    with children(), router_model() as model:
        request = router_request(return_log_probs=np.ones((1, 1), bool))
        model.execute([request])
        outputs = request.wait()[0].outputs
    assert set(outputs) == {spec.name for spec in ROUTER.outputs}
    for spec in ROUTER.outputs:
        assert outputs[spec.name].shape[0] == 1
        assert outputs[spec.name].ndim == 2, spec.name
    assert outputs["output_log_probs"].shape == (1, 5)
    assert outputs["num_output_tokens"].tolist() == [[5]]
    assert outputs["served_path"].item() in (b"fast", b"slow")


def test_rows_when_several_then_each_answered_under_its_index():
    with children(), router_model() as model:
        request = router_request(make_prompt(1, 3), make_prompt(2, 9))
        model.execute([request])
        answer = request.wait()
    rows = sorted(int(sent.outputs["batch_index"].item()) for sent in answer if sent.outputs)
    assert rows == [0, 1]


def test_row_when_wrong_then_the_request_ends_with_its_error_as_the_one_final():
    """Triton 2.51 counts an ensemble's inference as in flight for ever when an error is not final."""
    with children() as engine, router_model() as model:
        request = router_request(make_prompt(1, 3), make_prompt(2, 9), max_tokens=i32(80, -1).reshape(2, 1))
        model.execute([request])
        answer = request.wait()
        assert [sent.error is not None for sent in answer] == [False] * (len(answer) - 1) + [True]
        assert from_wire(answer[-1].error.message()).field == "max_tokens"
        assert engine._engine.stats().num_running == 0


def test_stop_when_running_then_the_engine_stops_too():
    decoder = SlowDecoder(PagedTinyDecoder(TinyModel(0)))
    with children(decoder) as engine, router_model() as model:
        running = router_request(max_tokens=i32(80).reshape(1, 1), stream=np.ones((1, 1), bool))
        model.execute([running])
        decoder.gate.set()
        while len(running.sender.sent) < 2:
            time.sleep(0.002)
        stop = Request({"stop": np.ones((1, 1), bool), "input_ids": np.zeros((1, 0), np.int32), "input_lengths": i32(0)}, "r1")
        model.execute([stop])
        assert stop.wait()[0].outputs == {}
        answer = running.wait()
        assert reasons_of(answer) == ["cancelled"]
        deadline = time.monotonic() + 5
        while engine._engine.stats().num_used_blocks and time.monotonic() < deadline:
            time.sleep(0.002)
        assert engine._engine.stats().num_used_blocks == 0


def test_client_when_gone_while_the_prompt_waits_in_the_queue_then_the_engine_drops_it():
    decoder = SlowDecoder(PagedTinyDecoder(TinyModel(0)))
    with children(decoder) as engine, router_model() as model:
        request = router_request(max_tokens=i32(80).reshape(1, 1))
        model.execute([request])
        while not len(engine._open):
            time.sleep(0.002)
        request.sender.cancelled = True
        time.sleep(0.05)
        decoder.gate.set()
        assert reasons_of(request.wait()) == ["cancelled"]
        assert engine._engine.stats().num_cancelled == 1


def test_router_when_full_then_unavailable():
    decoder = SlowDecoder(PagedTinyDecoder(TinyModel(0)))
    with children(decoder), router_model(max_concurrent_requests=1, max_queue_size=1) as model:
        requests = [router_request(id=f"q{number}") for number in range(4)]
        model.execute(requests)
        decoder.gate.set()
        answers = [each.wait() for each in requests]
    codes = [next((sent.error.code() for sent in answer if sent.error), None) for answer in answers]
    assert codes == [None, None, "UNAVAILABLE", "UNAVAILABLE"]


def test_child_when_it_fails_then_its_error_arrives_with_its_own_code():
    with children(), router_model() as model:
        InferenceRequest.handlers = dict.fromkeys(
            ("fast_int4", "fast_int8", "slow"),
            lambda call: iter(
                [InferenceResponse([], TritonError("in ensemble, [tandem:overloaded] the waiting queue is full", "INTERNAL"))]
            ),
        )
        request = router_request()
        model.execute([request])
        error = next(sent.error for sent in request.wait() if sent.error)
    assert error.code() == "UNAVAILABLE"
    assert from_wire(error.message()).code == "overloaded"


@pytest.mark.parametrize("text", ["Stub process 'slow_0_0' is not healthy.", "Request for unknown model: 'slow' is not found"])
def test_child_when_it_is_dead_then_engine_failure_without_triton_words(text):
    with children(), router_model() as model:
        InferenceRequest.handlers = dict.fromkeys(
            ("fast_int4", "fast_int8", "slow"), lambda call: iter([InferenceResponse([], TritonError(text, "INTERNAL"))])
        )
        request = router_request()
        model.execute([request])
        error = next(sent.error for sent in request.wait() if sent.error)
    assert from_wire(error.message()).code == "engine_failure"
    assert "tub" not in error.message()


def test_service_when_it_crashes_then_one_error_one_final_and_the_seat_is_free():
    class Broken:
        counts = RouteCounts()

        def open(self, request):
            return SimpleNamespace(cancel=lambda: None)

        def close(self):
            pass

        def run(self, flow, emit):
            raise KeyError("inner detail")

        def stop(self, request_id):
            return 0

    with router_model(Broken(), max_concurrent_requests=1, max_queue_size=0) as model:
        for number in range(3):
            request = router_request(id=f"x{number}")
            model.execute([request])
            answer = request.wait()
            assert len(answer) == 1
            assert [sent.error.code() for sent in answer if sent.error] == ["INTERNAL"]
            assert "inner detail" not in answer[0].error.message()
            deadline = time.monotonic() + 5
            while model._num_rows and time.monotonic() < deadline:
                time.sleep(0.002)


def test_text_when_not_utf8_then_refused_by_name():
    with children(), router_model() as model:
        request = router_request(stop_words=np.array([[b"\xff\xfe"]], object))
        model.execute([request])
        (sent,) = request.wait()
    assert from_wire(sent.error.message()).field == "stop_words"


def sampled_request(**sampling) -> EngineRequest:
    return EngineRequest(RequestId("child"), PROMPT, SamplingParams(**{"max_tokens": 6, **sampling}))


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.05, "seed": 2**63 + 1},
        {"temperature": 1.0, "seed": 4},
        {"temperature": 1.0, "top_k": 1},
        {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": -0.5, "min_tokens": 3, "end_id": 2},
        {"stop_words": ((1, 2), (3,)), "bad_words": ((4,),), "logit_bias": ((3, 1.5), (60, -2.25))},
        {"num_return_sequences": 3, "temperature": 1.0, "return_log_probs": True, "top_logprobs": 4},
    ],
)
def test_request_when_encoded_and_read_back_then_the_same_sampling(sampling):
    from tandem.triton.bls import encode_request
    from tandem.triton.engine_request import read_calls

    request = sampled_request(**sampling)
    tensors = encode_request(request, VOCAB_SIZE, streaming=True)
    (call,) = read_calls(tensors, VOCAB_SIZE)
    assert call.prompt_ids == PROMPT
    assert call.options.streaming
    expected = request.sampling if not request.sampling.is_greedy else replace(request.sampling, temperature=0.0, top_k=0)
    assert call.sampling == replace(expected, end_id=-1 if expected.end_id is None else expected.end_id)  # stated on the wire


def test_request_when_encoded_then_types_are_those_of_the_contract():
    from tandem.triton.bls import encode_request

    names = {"BOOL": "bool", "INT32": "int32", "FP32": "float32", "UINT64": "uint64"}
    request = sampled_request(
        temperature=0.7, seed=1, min_p=0.1, top_k=3, end_id=2, num_return_sequences=2, top_logprobs=2, logit_bias=((1, 1.0),)
    )
    for name, array in encode_request(request, VOCAB_SIZE, streaming=False).items():
        assert str(array.dtype) == names[ENGINE.input(name).dtype.value], name
        assert array.shape[0] == 1
        assert array.ndim == 1 + len(ENGINE.input(name).dims), name


def test_port_when_streaming_with_log_probs_then_deltas_carry_their_own_and_the_last_is_marked():
    from tandem.triton.bls import BlsEnginePort

    with children():
        request = sampled_request(return_log_probs=True, top_logprobs=2)
        deltas = list(BlsEnginePort(VOCAB_SIZE, 4).generate("slow", request, streaming=True))
    assert [len(delta.log_probs) for delta in deltas] == [len(delta.token_ids) for delta in deltas]
    assert [len(delta.top) for delta in deltas] == [len(delta.token_ids) for delta in deltas]
    assert [delta.is_last for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    assert sum(len(delta.token_ids) for delta in deltas) == 6
    assert all(delta.finish_reason is None for delta in deltas)


def test_port_when_the_answer_breaks_the_contract_then_engine_failure():
    from tandem.errors import EngineFailure
    from tandem.triton.bls import BlsEnginePort

    InferenceRequest.handlers = {
        "slow": lambda call: iter([InferenceResponse([Tensor("output_ids", np.zeros((1, 1, 1), np.int32))])])
    }
    with pytest.raises(EngineFailure, match="contract"):
        list(BlsEnginePort(VOCAB_SIZE, 4).generate("slow", sampled_request(), streaming=True))


def test_stop_when_the_engine_cannot_be_reached_then_nothing_is_raised():
    from tandem.triton.bls import BlsEnginePort

    InferenceRequest.handlers = {"slow": lambda call: iter([InferenceResponse([], TritonError("gone"))])}
    BlsEnginePort(VOCAB_SIZE, 4).stop("slow", "any")


def test_flows_when_many_at_once_then_all_end_alike():
    with children(), router_model() as model:
        requests = [router_request(id=f"m{number}", stream=np.ones((1, 1), bool)) for number in range(16)]
        threads = [threading.Thread(target=model.execute, args=([each],)) for each in requests]
        for thread in threads:
            thread.start()
        texts = {text_of(each.wait()) for each in requests}
        for thread in threads:
            thread.join()
    assert len(texts) == 1


def test_engine_and_router_when_n_choices_then_each_has_its_reason():
    with children(), router_model() as model:
        request = router_request(
            num_return_sequences=i32(3).reshape(1, 1),
            temperature=f32(1.0).reshape(1, 1),
            seed=np.array([[7]], np.uint64),
            stream=flag().reshape(1, 1),
        )
        model.execute([request])
        answer = request.wait()
    ended = [int(sent.outputs["sequence_index"].item()) for sent in answer if sent.outputs and sent.outputs["finish_reason"].item()]
    assert sorted(ended) == [0, 1, 2]
    assert reasons_of(answer) == [FinishReason.LENGTH.value] * 3
