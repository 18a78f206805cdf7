"""The engine adapter over a real engine with a tiny decoder: what leaves for Triton, on every path."""

from __future__ import annotations

import importlib.util
import json
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from tandem.config import EngineModelConfig
from tandem.errors import from_wire
from tandem.protocol import ENGINE
from tests.adapter.fake_pb_utils import Logger, Request, TritonModelException
from tests.factories import make_decoder, make_prompt
from tests.guided_factories import END, detokenize, make_compiler, tiny_tokenizer
from tests.tiny_model import VOCAB_SIZE, TinyModel, reference_greedy

ROOT = Path(__file__).resolve().parents[2]
ALL_OUTPUTS = tuple(spec.name for spec in ENGINE.outputs)
PROMPT = make_prompt(3, 7)


def config(**changes) -> EngineModelConfig:
    values = {
        "name": "slow",
        "version": "1",
        "engine_dir": Path("unused"),
        "max_tokens_in_paged_kv_cache": 256,
        "kv_cache_dtype": "f32",
        "has_dynamic_quantization": False,
        "num_threads": 1,
        "exclude_input_in_output": True,
        "cancellation_check_period_ms": 5,
        "stats_check_period_ms": 5,
        "max_seq_len": 96,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_queue_size": 4,
        "max_draft_len": 0,
        "scheduling_policy": "slo",
        "slo_ttft_ms": 2000,
        "enable_kv_cache_reuse": True,
    }
    return EngineModelConfig(**{**values, **changes})


class SlowDecoder:
    """A decoder that waits before each forward pass until it is let go."""

    def __init__(self, inner) -> None:
        self._inner = inner
        self.info = inner.info
        self.gate = threading.Event()
        self.copy_blocks = inner.copy_blocks

    def forward(self, batch):
        assert self.gate.wait(20)
        time.sleep(0.002)
        return self._inner.forward(batch)


@contextmanager
def engine_model(decoder=None, grammars=None, **changes):
    from tandem.triton.engine_adapter import EngineModel

    model = EngineModel(config(**changes), make_decoder() if decoder is None else decoder, grammars)
    try:
        yield model
    finally:
        if hasattr(decoder, "gate"):
            decoder.gate.set()
        model.close()


def request(prompt=PROMPT, max_tokens=6, *, id="r1", outputs=ALL_OUTPUTS, parameters=None, **tensors) -> Request:
    """One row; extra tensors by name. Scalars arrive as [1], as the reshape of the config makes them."""
    base = {
        "input_ids": np.array([prompt], np.int32),
        "input_lengths": np.array([len(prompt)], np.int32),
        "request_output_len": np.array([max_tokens], np.int32),
    }
    return Request({**base, **tensors}, id, outputs, parameters or {})


def flag(value=True):
    return np.array([value])


def i32(*values):
    return np.array(values, np.int32)


def f32(*values):
    return np.array(values, np.float32)


def retention(starts=0, ends=-1, priorities=90, durations_ms=None):
    """One rule for a range of the prompt; -1 is the end of the prompt."""
    values = {"starts": starts, "ends": ends, "priorities": priorities, "durations_ms": durations_ms}
    return {f"retention_token_range_{name}": i32(value).reshape(1, 1) for name, value in values.items() if value is not None}


def ask(model, *requests: Request) -> list:
    model.execute(list(requests))
    answers = [each.wait() for each in requests]
    return answers[0] if len(answers) == 1 else answers


def ids(sent) -> list[int]:
    assert sent.outputs["output_ids"].shape[:2] == (1, 1)
    assert sent.outputs["sequence_length"].tolist() == [[sent.outputs["output_ids"].shape[2]]]
    return sent.outputs["output_ids"].reshape(-1).tolist()


def reference(num_tokens: int, prompt=PROMPT) -> list[int]:
    tokens, gap = reference_greedy(TinyModel(0), prompt, num_tokens)
    assert gap > 1e-6
    return tokens


def error_of(answer) -> tuple[str, str, str | None]:
    """(Triton code, our code, field) of an answer that is one error."""
    assert len(answer) == 1
    error = answer[0].error
    assert error is not None
    assert "Traceback" not in error.message()
    parsed = from_wire(error.message())
    assert parsed is not None
    return error.code(), parsed.code, parsed.field


def test_answer_when_not_streaming_then_one_response_with_all_tokens():
    with engine_model() as model:
        (sent,) = ask(model, request())
    assert ids(sent) == reference(6)
    assert sent.outputs["output_ids"].dtype == np.int32


def test_answer_when_streaming_then_deltas_join_to_the_whole():
    with engine_model() as model:
        answer = ask(model, request(streaming=flag()))
    assert [token for sent in answer for token in ids(sent)] == reference(6)


def test_scalars_when_of_shape_1_1_then_read_as_well():
    with engine_model() as model:
        (sent,) = ask(model, request(request_output_len=i32(4).reshape(1, 1), end_id=i32(-1).reshape(1, 1)))
    assert ids(sent) == reference(4)


def test_prompt_when_not_excluded_then_in_the_one_response_but_never_streamed():
    with engine_model(exclude_input_in_output=False) as model:
        whole, streamed, overridden = ask(
            model,
            request(id="a"),
            request(id="b", streaming=flag()),
            request(id="c", exclude_input_in_output=flag(True)),
        )
    assert ids(whole[0]) == [*PROMPT, *reference(6)]
    assert [token for sent in streamed for token in ids(sent)] == reference(6)
    assert ids(overridden[0]) == reference(6)


def test_end_token_when_sampled_then_last_streamed_response_is_empty():
    tokens = reference(6)
    end = next(token for token in tokens if token not in tokens[: tokens.index(token)] and tokens.index(token) > 0)
    with engine_model() as model:
        answer, whole = ask(model, request(streaming=flag(), end_id=i32(end)), request(id="w", end_id=i32(end)))
    assert ids(answer[-1]) == []
    assert answer[-1].outputs["output_ids"].shape == (1, 1, 0)
    assert [token for sent in answer for token in ids(sent)] == tokens[: tokens.index(end)]
    assert ids(whole[0]) == tokens[: tokens.index(end)]


def test_log_probs_when_streaming_then_cumulative_list():
    with engine_model() as model:
        answer = ask(model, request(streaming=flag(), return_log_probs=flag()))
        (whole,) = ask(model, request(id="w", return_log_probs=flag()))
    counts = np.cumsum([len(ids(sent)) for sent in answer]).tolist()
    assert [sent.outputs["output_log_probs"].shape for sent in answer] == [(1, 1, count) for count in counts]
    last = answer[-1].outputs
    np.testing.assert_allclose(last["cum_log_probs"], [[last["output_log_probs"].sum()]], rtol=1e-5)
    np.testing.assert_allclose(whole.outputs["output_log_probs"], last["output_log_probs"])


def test_optional_outputs_when_not_asked_for_then_absent():
    with engine_model() as model:
        (sent,) = ask(model, request())
    assert set(sent.outputs) == {"output_ids", "sequence_length", "output_entropy"}


def test_optional_outputs_when_asked_for_then_there_with_their_shapes():
    with engine_model() as model:
        (sent,) = ask(
            model,
            request(
                return_perf_metrics=flag(),
                return_num_input_tokens=flag(),
                return_num_output_tokens=flag(),
                top_logprobs=i32(3),
            ),
        )
    outputs = sent.outputs
    assert outputs["num_input_tokens"].tolist() == [[7]]
    assert outputs["num_output_tokens"].tolist() == [[6]]
    assert outputs["output_entropy"].shape == (1, 1, 6)
    assert outputs["output_top_ids"].shape == outputs["output_top_log_probs"].shape == (1, 6, 3)
    assert outputs["output_top_ids"][0, :, 0].tolist() == ids(sent)
    assert outputs["kv_cache_alloc_total_blocks"].tolist() == [[3]]  # 7 + 6 - 1 slots in blocks of 4
    assert outputs["first_token_time_ns"] <= outputs["last_token_time_ns"]


def test_outputs_when_only_some_are_requested_then_no_others():
    with engine_model() as model:
        (sent,) = ask(model, request(outputs=("output_ids", "sequence_length"), return_log_probs=flag()))
    assert set(sent.outputs) == {"output_ids", "sequence_length"}


def test_outputs_when_sequence_length_is_not_requested_then_refused():
    with engine_model() as model:
        assert error_of(ask(model, request(outputs=("output_ids",)))) == ("INVALID_ARG", "invalid_value", "outputs")


def test_rows_when_ragged_then_each_answered_under_its_index():
    prompts = [make_prompt(1, 3), make_prompt(2, 9)]
    padded = np.zeros((2, 9), np.int32)
    for row, prompt in enumerate(prompts):
        padded[row, : len(prompt)] = prompt
    batch = Request(
        {"input_ids": padded, "input_lengths": i32(3, 9), "request_output_len": i32(5, 4), "streaming": np.array([True, False])},
        "b",
        ALL_OUTPUTS,
    )
    with engine_model() as model:
        model.execute([batch])
        answer = batch.wait()
    by_row = {0: [], 1: []}
    for sent in answer:
        by_row[int(sent.outputs["batch_index"].item())] += ids(sent)
    assert by_row == {0: reference(5, prompts[0]), 1: reference(4, prompts[1])}


def test_sequences_when_several_then_each_under_its_index():
    sampled = {"runtime_top_p": f32(1.0), "seed": np.array([5], np.uint64), "num_return_sequences": i32(3)}
    with engine_model() as model:
        whole = ask(model, request(**sampled))
        streamed = ask(model, request(id="s", streaming=flag(), **sampled))
    by_index = {int(sent.outputs["sequence_index"].item()): ids(sent) for sent in whole}
    assert sorted(by_index) == [0, 1, 2]
    joined = {0: [], 1: [], 2: []}
    for sent in streamed:
        joined[int(sent.outputs["sequence_index"].item())] += ids(sent)
    assert joined == by_index
    assert len({tuple(tokens) for tokens in by_index.values()}) > 1


def test_stop_when_running_then_both_get_their_final_and_blocks_are_free():
    decoder = SlowDecoder(make_decoder())
    with engine_model(decoder) as model:
        running = request(max_tokens=80, streaming=flag())
        model.execute([running])
        stop = Request({"stop": flag(), "input_lengths": i32(0), "request_output_len": i32(0)}, "r1", ALL_OUTPUTS)
        decoder.gate.set()
        while len(running.sender.sent) < 2:
            time.sleep(0.002)
        model.execute([stop])
        (reply,) = stop.wait()
        answer = running.wait()
        assert (reply.outputs, reply.error) == ({}, None)
        assert ids(answer[-1]) == []
        assert sum(len(ids(sent)) for sent in answer) < 80
        assert model._engine.stats().num_used_blocks == 0
        assert len(model._open) == 0


def test_stop_when_not_streaming_then_the_tokens_so_far_come_back():
    decoder = SlowDecoder(make_decoder())
    with engine_model(decoder) as model:
        running = request(max_tokens=80)
        model.execute([running])
        decoder.gate.set()
        while model._engine.stats().num_generated_tokens < 3:
            time.sleep(0.002)
        model.execute([Request({"stop": flag()}, "r1", ALL_OUTPUTS)])
        (sent,) = running.wait()
    tokens = ids(sent)
    assert 3 <= len(tokens) < 80
    assert tokens == reference(len(tokens))


def test_stop_when_it_comes_before_its_request_then_the_request_ends_at_once():
    with engine_model() as model:
        model.execute([Request({"stop": flag()}, "early", ALL_OUTPUTS)])
        answer = ask(model, request(id="early", max_tokens=80, streaming=flag()))
        again = ask(model, request(id="early", streaming=flag()))
    assert sum(len(ids(sent)) for sent in answer) < 80
    assert sum(len(ids(sent)) for sent in again) == 6  # the stop is used up


def test_stop_when_id_is_empty_then_refused_and_when_unknown_then_accepted():
    with engine_model() as model:
        assert error_of(ask(model, Request({"stop": flag()}, "", ALL_OUTPUTS))) == ("INVALID_ARG", "invalid_value", "stop")
        (sent,) = ask(model, Request({"stop": flag()}, "nobody", ALL_OUTPUTS))
    assert (sent.outputs, sent.error) == ({}, None)


def test_client_when_gone_then_the_request_ends():
    decoder = SlowDecoder(make_decoder())
    with engine_model(decoder) as model:
        running = request(max_tokens=80, streaming=flag())
        model.execute([running])
        running.sender.cancelled = True
        decoder.gate.set()
        answer = running.wait()
        assert sum(len(ids(sent)) for sent in answer) < 80
        assert model._engine.stats().num_cancelled == 1


@pytest.mark.parametrize(
    ("tensors", "code", "field"),
    [
        ({"input_ids": np.zeros((1, 0), np.int32), "input_lengths": i32(0)}, "INVALID_ARG", "input_ids"),
        ({"input_lengths": i32(8)}, "INVALID_ARG", "input_lengths"),
        ({"input_lengths": i32(0)}, "INVALID_ARG", "input_lengths"),
        ({"request_output_len": i32(0)}, "INVALID_ARG", "request_output_len"),
        ({"request_output_len": i32(-1)}, "INVALID_ARG", "request_output_len"),
        ({"temperature": f32(np.nan), "runtime_top_p": f32(0.9)}, "INVALID_ARG", "temperature"),
        ({"temperature": f32(-1.0)}, "INVALID_ARG", "temperature"),
        ({"runtime_top_p": f32(1.5)}, "INVALID_ARG", "top_p"),
        ({"end_id": i32(VOCAB_SIZE)}, "INVALID_ARG", "end_id"),
        ({"embedding_bias": np.zeros((1, VOCAB_SIZE + 1), np.float32)}, "INVALID_ARG", "embedding_bias"),
        ({"embedding_bias": np.full((1, VOCAB_SIZE), np.inf, np.float32)}, "INVALID_ARG", "embedding_bias"),
        ({"stop_words_list": i32(1, 2).reshape(1, 1, 2)}, "INVALID_ARG", "stop_words_list"),
        ({"stop_words_list": i32(1, 2, 3, -1).reshape(1, 2, 2)}, "INVALID_ARG", "stop_words_list"),
        ({"num_return_sequences": i32(0)}, "INVALID_ARG", "num_return_sequences"),
        ({"num_return_sequences": i32(5)}, "INVALID_ARG", "num_return_sequences"),
        ({"beam_width": i32(2)}, "UNSUPPORTED", "beam_width"),
        ({"lora_task_id": np.array([1], np.uint64)}, "UNSUPPORTED", "lora_task_id"),
        ({"draft_input_ids": i32(4).reshape(1, 1)}, "UNSUPPORTED", "draft_input_ids"),
        ({"return_generation_logits": flag()}, "UNSUPPORTED", "return_generation_logits"),
        ({"runtime_top_p_decay": f32(0.9)}, "UNSUPPORTED", "runtime_top_p_decay"),
        ({"guided_decoding_guide_type": np.array([[b"json"]], object)}, "UNSUPPORTED", "guided_decoding_guide_type"),
        ({"guided_decoding_guide_type": np.array([[b"yaml"]], object)}, "INVALID_ARG", "guided_decoding_guide_type"),
        ({"guided_decoding_guide": np.array([[b"a"]], object)}, "INVALID_ARG", "guided_decoding_guide_type"),
        ({"retention_token_range_starts": i32(0).reshape(1, 1)}, "INVALID_ARG", "retention_token_range_starts"),
        (retention(starts=-1), "INVALID_ARG", "retention_token_range_starts"),
        (retention(starts=4, ends=3), "INVALID_ARG", "retention_token_range_starts"),
        (retention(priorities=101), "INVALID_ARG", "retention_token_range_priorities"),
        (retention(durations_ms=-2), "INVALID_ARG", "retention_token_range_durations_ms"),
        ({"retention_decode_priority": i32(-1)}, "INVALID_ARG", "retention_decode_priority"),
        ({"retention_decode_duration_ms": i32(5)}, "INVALID_ARG", "retention_decode_duration_ms"),
    ],
)
def test_bad_input_when_sent_then_named_and_the_neighbour_is_unharmed(tensors, code, field):
    with engine_model() as model:
        bad, good = ask(model, request(id="bad", **tensors), request(id="good"))
        assert (error_of(bad)[0], error_of(bad)[2]) == (code, field)
        assert ids(good[0]) == reference(6)
        assert len(model._open) == 0


def test_harmless_tensors_when_sent_then_ignored():
    harmless = {
        "pad_id": i32(0),
        "beam_width": i32(1),
        "len_penalty": f32(0.5),
        "draft_input_ids": np.zeros((1, 0), np.int32),
        "embedding_bias": np.zeros((1, 0), np.float32),
        **retention(durations_ms=1000),
        "retention_decode_priority": i32(80),
        "cache_salt": np.array([[b""]], object),
    }
    with engine_model() as model:
        (sent,) = ask(model, request(**harmless))
    assert ids(sent) == reference(6)


def test_words_when_given_then_bad_ones_are_avoided_and_stop_ones_included():
    tokens = reference(6)
    with engine_model() as model:
        (banned,) = ask(model, request(bad_words_list=i32(tokens[0], 1).reshape(1, 2, 1)))
        (stopped,) = ask(model, request(id="s", stop_words_list=i32(9, tokens[2], 1, 2).reshape(1, 2, 2)))
    assert tokens[0] not in ids(banned)
    assert ids(stopped) == tokens[: tokens.index(tokens[2]) + 1]


def test_bias_when_given_then_it_decides():
    bias = np.zeros((1, VOCAB_SIZE), np.float32)
    bias[0, 17] = 100.0
    with engine_model() as model:
        (sent,) = ask(model, request(embedding_bias=bias))
    assert ids(sent) == [17] * 6


def test_request_type_when_not_the_usual_one_then_refused():
    with engine_model() as model:
        answer = ask(model, request(parameters={"request_type": "context_only"}))
    assert error_of(answer) == ("UNSUPPORTED", "unsupported", "request_type")


def test_queue_when_full_then_unavailable_and_the_rest_is_answered():
    decoder = SlowDecoder(make_decoder())
    with engine_model(decoder, max_num_seqs=1, max_queue_size=1) as model:
        requests = [request(id=f"q{number}") for number in range(4)]
        model.execute(requests)
        decoder.gate.set()
        answers = [each.wait() for each in requests]
    codes = [answer[0].error.code() if answer[0].error else None for answer in answers]
    assert codes == [None, None, "UNAVAILABLE", "UNAVAILABLE"]


def test_forward_when_it_breaks_then_one_error_and_the_next_request_works():
    class Breaking(SlowDecoder):
        def __init__(self, inner):
            super().__init__(inner)
            self.gate.set()
            self.is_broken = True

        def forward(self, batch):
            if self.is_broken:
                raise RuntimeError("secret path /etc/shadow")
            return super().forward(batch)

    decoder = Breaking(make_decoder())
    with engine_model(decoder) as model:
        answer = ask(model, request())
        decoder.is_broken = False
        (good,) = ask(model, request(id="r2"))
    assert error_of(answer)[:2] == ("INTERNAL", "engine_failure")
    assert "secret" not in answer[0].error.message()
    assert ids(good) == reference(6)


def test_close_when_requests_run_then_each_still_gets_one_final():
    decoder = SlowDecoder(make_decoder())
    with engine_model(decoder, max_num_seqs=1) as model:
        requests = [request(id=f"c{number}", max_tokens=80) for number in range(3)]
        model.execute(requests)
    for each in requests:
        each.wait(1.0)


def test_sender_when_triton_refuses_a_response_then_the_engine_forgets_the_request():
    with engine_model() as model:
        broken = request(max_tokens=80, streaming=flag())
        model.execute([broken])
        broken.sender.has_ended.set()  # from now on Triton refuses whatever is sent
        deadline = time.monotonic() + 10
        while len(model._open) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert len(model._open) == 0
        (good,) = ask(model, request(id="good"))
    assert ids(good) == reference(6)


def model_py(name: str):
    path = ROOT / "model_repository" / name / "1" / "model.py"
    spec = importlib.util.spec_from_file_location(f"{name}_model", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TritonPythonModel()


def arguments(name: str, **parameters: str) -> dict[str, str]:
    """What Triton gives initialize: the committed config, with the given parameters changed."""
    path = ROOT / "model_repository" / name / "config.pbtxt"
    parsed = text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
    for key, value in parameters.items():
        parsed.parameters[key].string_value = value
    config_json = json.dumps(json_format.MessageToDict(parsed, preserving_proto_field_name=True))
    return {"model_name": name, "model_version": "1", "model_config": config_json}


def test_model_py_when_loaded_with_its_config_then_serves(monkeypatch, tmp_path):
    from tandem.triton import engine_adapter

    asked = {}

    def load(engine_dir, **options):
        asked.update(options, engine_dir=engine_dir)
        return make_decoder(num_blocks=options["num_blocks"])

    monkeypatch.setattr(engine_adapter, "load_decoder", load)
    monkeypatch.setattr(engine_adapter, "load_tokenizer", lambda engine_dir, vocab_size: tiny_tokenizer())
    monkeypatch.setattr(engine_adapter, "_TOKENS_PER_BLOCK", 4)
    monkeypatch.setenv("TANDEM_HOME", str(tmp_path))
    (tmp_path / "engines" / "slow" / "current").mkdir(parents=True)
    model = model_py("slow")
    model.initialize(arguments("slow", max_tokens_in_paged_kv_cache="401", num_threads="3"))
    try:
        one = request()
        model.execute([one])
        assert ids(one.wait()[0]) == reference(6)
    finally:
        model.finalize()
    assert asked["num_blocks"] == 100
    assert asked["num_threads"] == 3
    assert asked["engine_dir"] == tmp_path / "engines/slow/current"


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"kv_cache_dtype": "int8"}, ["slow", "kv_cache_dtype", "int8", "f16"]),
        ({"enable_kv_cache_reuse": "maybe"}, ["enable_kv_cache_reuse", "maybe", "false"]),
        ({"gpt_model_path": "engines/nothing"}, ["gpt_model_path", "engines/nothing", "build"]),
        ({"surprise": "1"}, ["surprise", "unknown"]),
    ],
)
def test_model_py_when_a_parameter_is_wrong_then_one_sentence(monkeypatch, tmp_path, parameters, words):

    monkeypatch.setenv("TANDEM_HOME", str(tmp_path))
    (tmp_path / "engines" / "slow" / "current").mkdir(parents=True)
    with pytest.raises(TritonModelException) as caught:
        model_py("slow").initialize(arguments("slow", **parameters))
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert "\n" not in text


def test_log_when_something_of_ours_breaks_then_the_traceback_is_in_it_and_not_in_the_answer(monkeypatch, tmp_path):
    from tandem.triton import engine_front
    from tandem.triton.logs import use_triton_log

    use_triton_log("slow")

    def broken(*_):
        raise KeyError("inner detail")

    monkeypatch.setattr(engine_front, "read_calls", broken)
    with engine_model() as model:
        answer = ask(model, request())
    assert error_of(answer)[:2] == ("INTERNAL", "engine_failure")
    assert "inner detail" not in answer[0].error.message()
    assert any(level == "error" and "Traceback" in text and "inner detail" in text for level, text in Logger.lines)


@pytest.mark.parametrize("streaming", [True, False])
def test_answer_when_guided_then_holds_and_marks_forced_tokens(streaming):
    guide = {
        "guided_decoding_guide_type": np.array([[b"regex"]], object),
        "guided_decoding_guide": np.array([[b"(cat|dog), yes"]], object),
    }
    with engine_model(grammars=make_compiler()) as model:
        sent = ask(model, request(max_tokens=20, streaming=flag(streaming), end_id=i32(END), **guide))
    tokens = [token for each in sent for token in ids(each)]
    assert detokenize(tokens) in ("cat, yes", "dog, yes")
    entropies = [value for each in sent for value in each.outputs["output_entropy"].reshape(-1).tolist()]
    assert len(entropies) == len(tokens)
    assert entropies.count(-1.0) >= 2
    if streaming:  # how a caller tells the end from a pause: a response without tokens
        assert ids(sent[-1]) == []
        assert all(ids(each) for each in sent[:-1])


def test_answer_when_guide_is_faulty_then_one_error_naming_the_tensor():
    guide = {
        "guided_decoding_guide_type": np.array([[b"regex"]], object),
        "guided_decoding_guide": np.array([[b"(cat"]], object),
    }
    with engine_model(grammars=make_compiler()) as model:
        answer = ask(model, request(**guide))
    assert error_of(answer) == ("UNSUPPORTED", "unsupported", "guided_decoding_guide")
