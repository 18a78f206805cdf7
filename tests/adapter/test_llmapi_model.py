"""The adapter over the LLM API, on a stand-in of its documented interface: the contract of the engines, on every path."""

from __future__ import annotations

import json
import sys
import types
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tandem.config import LlmApiModelConfig, llmapi_config
from tandem.errors import SetupError, Unsupported, from_wire
from tandem.protocol import ENGINE
from tandem.types import EngineRequest, RequestId, SamplingParams
from tests.adapter import fake_tensorrt_llm as fake
from tests.adapter.fake_pb_utils import Request, TritonModelException

ALL_OUTPUTS = tuple(spec.name for spec in ENGINE.outputs)
PROMPT = (7, 8, 9)
PARAMETERS = {
    "gpu_device_ids": "0",
    "max_batch_size": "4",
    "max_num_tokens": "64",
    "max_seq_len": "96",
    "max_queue_size": "2",
    "max_tokens_in_paged_kv_cache": "512",
    "tokens_per_block": "4",
    "exclude_input_in_output": "true",
    "cancellation_check_period_ms": "5",
    "guided_decoding_backend": "xgrammar",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"vocab_size": fake.VOCAB_SIZE}))
    return tmp_path


def config(home, **changes) -> LlmApiModelConfig:
    return llmapi_config("slow", {**PARAMETERS, "model_dir": "model", **changes}, home)


def use_stand_in(monkeypatch, llm_class=fake.LLM) -> None:
    top, llmapi = types.ModuleType("tensorrt_llm"), types.ModuleType("tensorrt_llm.llmapi")
    top.LLM, top.SamplingParams = llm_class, fake.SamplingParams
    llmapi.KvCacheConfig, llmapi.GuidedDecodingParams = fake.KvCacheConfig, fake.GuidedDecodingParams
    monkeypatch.setitem(sys.modules, "tensorrt_llm", top)
    monkeypatch.setitem(sys.modules, "tensorrt_llm.llmapi", llmapi)


@pytest.fixture
def served(home, monkeypatch):
    """(model, llm): the model over a stand-in that was loaded as the real one is."""
    use_stand_in(monkeypatch)
    with model_of(home) as pair:
        yield pair


@contextmanager
def model_of(home, **changes):
    from tandem.triton.llmapi_adapter import LlmApiModel, load_runtime

    runtime = load_runtime(config(home, **changes))
    model = LlmApiModel(config(home, **changes), runtime)
    try:
        yield model, runtime.llm
    finally:
        model.close()
        assert runtime.llm.is_shut_down


def i32(*values) -> np.ndarray:
    return np.array([values], np.int32)


def flag(value=True) -> np.ndarray:
    return np.array([[value]])


def f32(value) -> np.ndarray:
    return np.array([[value]], np.float32)


def text(value) -> np.ndarray:
    return np.array([[value.encode()]], object)


def request(id="r1", prompt=PROMPT, max_tokens=5, outputs=ALL_OUTPUTS, **tensors) -> Request:
    base = {
        "input_ids": np.array([prompt], np.int32),
        "input_lengths": i32(len(prompt)),
        "request_output_len": i32(max_tokens),
        "end_id": i32(fake.END),
    }
    return Request({**base, **tensors}, id, outputs)


def ask(model, req):
    model.execute([req])
    return req.wait()


def ids_of(sent) -> list[int]:
    assert all(each.error is None for each in sent), [each.error.message() for each in sent if each.error]
    return [token for each in sent if each.outputs for token in each.outputs["output_ids"].reshape(-1).tolist()]


def error_of(sent):
    error = sent[-1].error
    return error.code(), from_wire(error.message())


@pytest.mark.parametrize("streaming", [True, False])
def test_answer_when_it_ends_by_length_then_all_tokens_and_one_final(served, streaming):
    model, _ = served
    sent = ask(model, request(streaming=flag(streaming)))
    assert ids_of(sent) == [10, 11, 12, 13, 14]
    if not streaming:
        assert len(sent) == 1


def test_answer_when_it_ends_by_the_end_token_then_that_is_no_output_and_the_last_response_is_empty(served):
    model, _ = served
    sent = ask(model, request(prompt=(fake.END - 3,), max_tokens=20, streaming=flag()))
    assert ids_of(sent) == [fake.END - 2, fake.END - 1]
    assert sent[-1].outputs["output_ids"].shape == (1, 1, 0)
    assert sent[-1].outputs["sequence_length"].tolist() == [[0]]


def test_answer_when_no_end_is_wanted_then_it_runs_past_the_end_token(served):
    model, llm = served
    sent = ask(model, request(prompt=(fake.END - 3,), max_tokens=6, end_id=i32(-1)))
    assert ids_of(sent) == list(range(fake.END - 2, fake.END + 4))
    assert llm.calls[0][1].ignore_eos


def test_log_probs_when_asked_for_then_cumulative_with_the_alternatives_of_each_token(served):
    model, llm = served
    sent = ask(model, request(streaming=flag(), return_log_probs=flag(), top_logprobs=i32(2)))
    with_tokens = [each for each in sent if each.outputs["output_ids"].size]
    assert with_tokens[-1].outputs["output_log_probs"].shape == (1, 1, 5)
    assert with_tokens[-1].outputs["cum_log_probs"].item() == pytest.approx(-2.5)
    assert with_tokens[0].outputs["output_top_ids"][0, 0].tolist() == [10, 11]
    assert llm.calls[0][1].logprobs == 2


def test_log_probs_when_no_alternatives_are_wanted_then_one_is_asked_for_since_zero_means_none(served):
    model, llm = served
    sent = ask(model, request(return_log_probs=flag()))
    assert sent[0].outputs["output_log_probs"].shape == (1, 1, 5)
    assert "output_top_ids" not in sent[0].outputs
    assert llm.calls[0][1].logprobs == 1


def test_samples_when_several_then_each_has_its_index_and_its_end(served):
    model, llm = served
    sent = ask(
        model, request(num_return_sequences=i32(3), runtime_top_p=f32(0.9), seed=np.array([[5]], np.uint64), streaming=flag())
    )
    by_sequence: dict[int, list[int]] = {}
    for each in sent:
        if each.outputs:
            index = each.outputs["sequence_index"].item()
            by_sequence.setdefault(index, []).extend(each.outputs["output_ids"].reshape(-1).tolist())
    assert list(by_sequence.values()) == [[10, 11, 12, 13, 14]] * 3
    params = llm.calls[0][1]
    assert (params.n, params.seed, params.top_k) == (3, 5, None)
    assert params.top_p == pytest.approx(0.9)


def test_sampling_when_greedy_then_top_k_one_and_nothing_random(served):
    model, llm = served
    ask(model, request())
    params = llm.calls[0][1]
    assert (params.top_k, params.top_p, params.temperature, params.seed) == (1, None, None, None)


@pytest.mark.parametrize(
    ("guide_type", "guide", "field", "value"),
    [
        ("json_schema", '{"type": "object"}', "json", '{"type": "object"}'),
        ("json", "", "json_object", True),
        ("regex", "a+", "regex", "a+"),
        ("ebnf_grammar", 'root ::= "a"', "grammar", 'root ::= "a"'),
    ],
)
def test_guide_when_given_then_handed_on_in_the_field_of_its_type(served, guide_type, guide, field, value):
    model, llm = served
    ask(model, request(guided_decoding_guide_type=text(guide_type), guided_decoding_guide=text(guide)))
    given = llm.calls[0][1].guided_decoding
    assert getattr(given, field) == value
    others = {"json", "regex", "grammar", "json_object", "structural_tag"} - {field}
    assert not any(getattr(given, other) for other in others)


def test_salt_when_given_then_handed_on(served):
    model, llm = served
    ask(model, request(cache_salt=text("tenant/a")))
    assert llm.calls[0][2] == {"cache_salt": "tenant/a"}


def test_cached_tokens_when_the_runtime_reports_blocks_then_in_the_metrics_tensors(served):
    model, llm = served
    llm.num_reused_blocks = 2
    sent = ask(model, request(prompt=tuple(range(1, 11)), return_perf_metrics=flag()))
    assert sent[-1].outputs["kv_cache_reused_blocks"].item() == 2


def test_logit_bias_when_given_then_a_dense_vector(home, monkeypatch):
    use_stand_in(monkeypatch)
    torch = types.ModuleType("torch")
    torch.float32 = np.float32
    torch.zeros = lambda size, dtype: np.zeros(size, dtype)
    monkeypatch.setitem(sys.modules, "torch", torch)
    bias = np.zeros((1, fake.VOCAB_SIZE), np.float32)
    bias[0, 7] = 2.5
    with model_of(home) as (model, llm):
        ask(model, request(embedding_bias=bias))
        given = llm.calls[0][1].embedding_bias
    assert given.shape == (fake.VOCAB_SIZE,)
    assert np.flatnonzero(given).tolist() == [7]


@pytest.mark.parametrize(
    ("tensors", "code", "field"),
    [
        ({"num_return_sequences": i32(2)}, "UNSUPPORTED", "num_return_sequences"),
        ({"stop_words_list": np.array([[[1, 2], [2, -1]]], np.int32)}, "UNSUPPORTED", "stop_words_list"),
        ({"bad_words_list": np.array([[[1, 2], [2, -1]]], np.int32)}, "UNSUPPORTED", "bad_words_list"),
        ({"draft_input_ids": i32(1, 2)}, "UNSUPPORTED", "draft_input_ids"),
        ({"beam_width": i32(2)}, "UNSUPPORTED", "beam_width"),
        ({"return_generation_logits": flag()}, "UNSUPPORTED", "return_generation_logits"),
        ({"end_id": i32(fake.VOCAB_SIZE)}, "INVALID_ARG", "end_id"),
        ({"request_output_len": i32(0)}, "INVALID_ARG", "request_output_len"),
        ({"guided_decoding_guide_type": text("yaml")}, "INVALID_ARG", "guided_decoding_guide_type"),
    ],
)
def test_request_when_the_api_cannot_do_it_then_refused_by_name_and_never_started(served, tensors, code, field):
    model, llm = served
    sent = ask(model, request(**tensors))
    assert error_of(sent)[0] == code
    assert error_of(sent)[1].field == field
    assert llm.calls == []


def test_words_when_of_one_token_then_handed_on_and_a_stop_word_stays_in_the_output(served):
    model, llm = served
    sent = ask(model, request(stop_words_list=np.array([[[12], [1]]], np.int32), bad_words_list=np.array([[[3], [1]]], np.int32)))
    assert ids_of(sent) == [10, 11, 12]
    assert llm.calls[0][1].include_stop_str_in_output
    assert llm.calls[0][1].bad_token_ids == [3]


def test_prompt_when_it_fills_the_context_then_refused_and_a_long_answer_is_clamped(served):
    model, llm = served
    sent = ask(model, request(prompt=(1,) * 96))
    assert error_of(sent)[1].code == "context_length_exceeded"
    ask(model, request(prompt=(100,) * 90, max_tokens=1000))
    assert llm.calls[0][1].max_tokens == 6


def test_stop_when_sent_under_the_same_id_then_the_request_ends_and_is_aborted(served):
    model, llm = served
    llm.is_held = True
    running = request(prompt=(100,), max_tokens=80, streaming=flag())
    model.execute([running])
    ask(model, Request({"stop": flag(), "input_lengths": i32(0), "request_output_len": i32(0)}, "r1", ALL_OUTPUTS))
    sent = running.wait()
    assert len(ids_of(sent)) < 80
    assert llm.num_aborted == 1
    assert len(model._open) == 0


def test_client_when_it_goes_away_then_the_request_is_aborted(served):
    model, llm = served
    llm.is_held = True
    running = request(prompt=(100,), max_tokens=80)
    model.execute([running])
    running.sender.cancelled = True
    running.wait()
    assert llm.num_aborted == 1


def test_runtime_when_it_raises_then_one_error_without_inner_text(served):
    model, llm = served
    llm.failure = RuntimeError("inner detail")
    sent = ask(model, request())
    assert error_of(sent)[0] == "INTERNAL"
    assert "inner detail" not in sent[-1].error.message()
    llm.failure = None
    assert ids_of(ask(model, request(id="next"))) == [10, 11, 12, 13, 14]


def test_engine_when_full_then_overloaded_and_free_again_afterwards(served):
    model, llm = served
    llm.is_held = True
    running = [request(id=f"r{number}") for number in range(6)]
    model.execute(running)
    sent = ask(model, request(id="one too many"))
    assert error_of(sent)[0] == "UNAVAILABLE"
    llm.is_held = False
    for each in running:
        each.wait()
    assert ids_of(ask(model, request(id="later")))


def test_close_when_requests_run_then_each_ends_with_an_error(home, monkeypatch):
    use_stand_in(monkeypatch)
    running = request(prompt=(100,), max_tokens=80)
    with model_of(home) as (model, llm):
        llm.is_held = True
        model.execute([running])
    assert error_of(running.wait())[0] == "INTERNAL"


def test_load_when_done_as_triton_does_then_the_llm_gets_every_parameter(home, monkeypatch):
    from tandem.triton.llmapi_adapter import LlmApiModel

    use_stand_in(monkeypatch)
    monkeypatch.setenv("TANDEM_HOME", str(home))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    parameters = {**PARAMETERS, "model_dir": "model", "gpu_device_ids": "1,2", "tensor_parallel_size": "2", "kv_cache_dtype": "fp8"}
    wire = {"parameters": {key: {"string_value": value} for key, value in parameters.items()}}
    model = LlmApiModel.load({"model_name": "slow", "model_version": "1", "model_config": json.dumps(wire)})
    arguments = model._engine._runtime.llm.arguments
    model.close()
    assert arguments["tensor_parallel_size"] == 2
    assert arguments["kv_cache_config"] == fake.KvCacheConfig(True, 512, 4, "fp8")
    assert arguments["guided_decoding_backend"] == "xgrammar"
    import os

    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1,2"


def test_load_when_the_version_has_no_salt_then_refused_unless_blocks_are_never_shared(home, monkeypatch):
    from tandem.triton.llmapi_adapter import load_runtime

    use_stand_in(monkeypatch, fake.OldLLM)
    with pytest.raises(SetupError, match="cache_salt"):
        load_runtime(config(home))
    with model_of(home, enable_kv_cache_reuse="false") as (model, llm):
        ask(model, request())
        assert llm.arguments["kv_cache_config"].enable_block_reuse is False


def test_load_when_tensorrt_llm_is_missing_then_one_sentence(home, monkeypatch):
    from tandem.triton.llmapi_adapter import LlmApiModel

    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    monkeypatch.setenv("TANDEM_HOME", str(home))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    wire = {"parameters": {key: {"string_value": value} for key, value in {**PARAMETERS, "model_dir": "model"}.items()}}
    with pytest.raises(TritonModelException, match="container"):
        LlmApiModel.load({"model_name": "slow", "model_version": "1", "model_config": json.dumps(wire)})


def test_model_folder_when_without_a_config_then_named(home, monkeypatch):
    use_stand_in(monkeypatch)
    (home / "model" / "config.json").unlink()
    from tandem.triton.llmapi_adapter import LlmApiModel, load_runtime

    with pytest.raises(SetupError, match="vocab_size"):
        LlmApiModel(config(home), load_runtime(config(home)))


def test_choice_when_it_reaches_the_adapter_then_refused_since_the_router_makes_a_regex_of_it():
    from tandem.triton.llmapi_calls import guide_arguments
    from tandem.types import Guide, GuideType

    with pytest.raises(Unsupported, match="choice"):
        guide_arguments(Guide(GuideType.CHOICE, '["a"]'))


def test_reader_when_tokens_come_in_one_piece_with_their_end_then_two_deltas():
    from tandem.triton.llmapi_calls import OutputReader

    asked = EngineRequest(RequestId("r"), (1, 2), SamplingParams(max_tokens=9, end_id=fake.END))
    reader = OutputReader(asked, 4)
    output = fake.CompletionOutput(0, [3, 4, fake.END], finish_reason="stop")
    first, last = reader.read([output], is_finished=False)
    assert (first.token_ids, first.is_last, last.token_ids, last.is_last) == ((3, 4), False, (), True)
    assert reader.read([output], is_finished=True) == []
