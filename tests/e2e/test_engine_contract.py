"""The tensor contract of the engines against a running server: names, types, shapes and flags, and how answers end; never values.

Runs against the server of the session. Pointed at another one, a GPU server say, it is the same suite::

    TANDEM_CONTRACT_URL=host:8001 TANDEM_CONTRACT_PROMPT=151644,872,198 TANDEM_CONTRACT_END_ID=151645 \\
        python -m pytest -m e2e tests/e2e/test_engine_contract.py

``TANDEM_CONTRACT_PROMPT`` and ``_END_ID`` are token ids of the model that is served there. What an engine can do is read from the
router's own configuration; a test of something an engine lacks is skipped by name.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tritonclient import grpc as grpcclient
from tritonclient.grpc import model_config_pb2

from tandem.capabilities import EXTENSION_TENSORS, Capability
from tandem.protocol import ENGINE_CONTRACT_INPUTS, ENGINE_CONTRACT_OUTPUTS, ENGINE_MODELS
from tests.e2e.triton_calls import CHAT_PROMPT, END_OF_TURN, Reply, Stream, ask, engine_tensors, stop, token_ids

pytestmark = pytest.mark.e2e
CONTRACT = Path(__file__).resolve().parents[3] / "shared" / "trtllm_contract.json"
_VARIABLE_TYPES = {"${encoder_input_features_data_type}", "${logits_datatype}", "${prompt_embedding_table_data_type}"}
_FAST_ENOUGH_S = 60.0


@dataclass(frozen=True)
class Target:
    """The server under test."""

    url: str
    prompt: tuple[int, ...]
    end_id: int
    configs: Mapping[str, model_config_pb2.ModelConfig]
    capabilities: Mapping[str, frozenset[Capability]]

    def tensors(self, max_tokens: int = 4, **tensors) -> dict[str, np.ndarray]:
        given = engine_tensors(self.prompt, max_tokens, **tensors)
        return {**given, "end_id": given["end_id"] if "end_id" in tensors else np.array([[self.end_id]], np.int32)}

    def ask(self, model: str, request_id: str | None = None, **tensors) -> list[Reply]:
        return ask(self.url, model, self.tensors(**tensors), request_id)

    def require(self, model: str, capability: Capability) -> None:
        if capability not in self.capabilities[model]:
            pytest.skip(f"{model} has no {capability.value}")


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest) -> Target:
    url = os.environ.get("TANDEM_CONTRACT_URL")
    if url is None:
        running = request.getfixturevalue("session_triton")
        running.wait_ready()
        url = running.config.grpc_url
    with grpcclient.InferenceServerClient(url) as client:
        configs = {name: client.get_model_config(name).config for name in (*ENGINE_MODELS, "router")}
    text = configs["router"].parameters["engine_capabilities"].string_value
    pairs = (part.split("=") for part in text.split(","))
    prompt = os.environ.get("TANDEM_CONTRACT_PROMPT")
    return Target(
        url=url,
        prompt=CHAT_PROMPT if prompt is None else tuple(int(token) for token in prompt.split(",")),
        end_id=int(os.environ.get("TANDEM_CONTRACT_END_ID", END_OF_TURN)),
        configs=configs,
        capabilities={name: frozenset(Capability(word) for word in words.split("+")) for name, words in pairs},
    )


@pytest.fixture(params=ENGINE_MODELS)
def model(request: pytest.FixtureRequest) -> str:
    return request.param


INPUTS = {spec.name: spec for spec in ENGINE_CONTRACT_INPUTS}
OUTPUTS = {spec.name: spec for spec in ENGINE_CONTRACT_OUTPUTS}


@pytest.mark.parametrize("name", INPUTS)
def test_contract_input(target: Target, model: str, name: str):
    spec = INPUTS[name]
    (found,) = (tensor for tensor in target.configs[model].input if tensor.name == name)
    assert model_config_pb2.DataType.Name(found.data_type) == spec.dtype.pbtxt
    assert tuple(found.dims) == spec.dims
    assert found.optional == spec.optional
    assert found.allow_ragged_batch == spec.ragged
    assert (tuple(found.reshape.shape) if found.HasField("reshape") else None) == spec.reshape


@pytest.mark.parametrize("name", OUTPUTS)
def test_contract_output(target: Target, model: str, name: str):
    spec = OUTPUTS[name]
    (found,) = (tensor for tensor in target.configs[model].output if tensor.name == name)
    assert model_config_pb2.DataType.Name(found.data_type) == spec.dtype.pbtxt
    assert tuple(found.dims) == spec.dims


def test_contract_extensions_are_those_of_the_capabilities(target: Target, model: str):
    config = target.configs[model]
    found = {tensor.name for tensor in (*config.input, *config.output)} - set(INPUTS) - set(OUTPUTS)
    assert found == {name for name, capability in EXTENSION_TENSORS.items() if capability in target.capabilities[model]}


@pytest.mark.skipif(not CONTRACT.is_file(), reason="the reference list trtllm_contract.json is not part of this checkout")
def test_contract_of_the_server_equals_the_reference_list(target: Target, model: str):
    reference = json.loads(CONTRACT.read_text())["models"]["tensorrt_llm"]
    config = target.configs[model]
    for rows, tensors in ((reference["inputs"], config.input), (reference["outputs"], config.output)):
        found = {tensor.name: tensor for tensor in tensors}
        for row in rows:
            tensor = found[row["name"]]
            assert list(tensor.dims) == row["dims"], row["name"]
            if row["data_type"] not in _VARIABLE_TYPES:
                assert model_config_pb2.DataType.Name(tensor.data_type) == row["data_type"], row["name"]


def test_contract_model_is_decoupled_and_batched(target: Target, model: str):
    config = target.configs[model]
    assert config.model_transaction_policy.decoupled
    assert config.max_batch_size >= 1
    assert config.HasField("dynamic_batching")


def test_streamed_answer_is_deltas_with_one_final_flag(target: Target, model: str):
    replies = target.ask(model, streaming=True, end_id=-1)
    assert [reply.is_final for reply in replies] == [False] * (len(replies) - 1) + [True]
    assert len(token_ids(replies)) == 4
    for reply in replies:
        if reply.outputs:
            ids = reply.outputs["output_ids"]
            assert ids.dtype == np.int32
            assert ids.shape[:2] == (1, 1)
            assert reply.outputs["sequence_length"].tolist() == [[ids.shape[2]]]


def test_whole_answer_is_one_response_equal_to_the_streamed_one(target: Target, model: str):
    whole = target.ask(model, streaming=False)
    assert len([reply for reply in whole if reply.outputs]) == 1
    assert token_ids(whole) == token_ids(target.ask(model, streaming=True))


def test_whole_answer_holds_the_prompt_only_when_it_is_not_excluded(target: Target, model: str):
    with_prompt = target.ask(model, streaming=False, exclude_input_in_output=False)
    without = target.ask(model, streaming=False, exclude_input_in_output=True)
    assert tuple(token_ids(with_prompt)) == (*target.prompt, *token_ids(without))


def test_end_token_is_no_output_and_the_last_streamed_response_is_empty(target: Target, model: str):
    """Any token can play the end token: the second one that the engine gives without an end."""
    first, second = token_ids(target.ask(model, end_id=-1, max_tokens=2))
    replies = target.ask(model, streaming=True, end_id=second, max_tokens=8)
    assert token_ids(replies) == ([first] if first != second else [])
    last = [reply for reply in replies if reply.outputs][-1]
    assert last.outputs["output_ids"].shape == (1, 1, 0)
    assert last.outputs["sequence_length"].tolist() == [[0]]


def test_stop_word_is_part_of_the_output_and_ends_it(target: Target, model: str):
    free = token_ids(target.ask(model, end_id=-1, max_tokens=6))
    word = np.array([[[free[2]], [1]]], np.int32)
    stopped = token_ids(target.ask(model, end_id=-1, max_tokens=6, stop_words_list=word))
    assert stopped == free[: free.index(free[2]) + 1]


def test_log_probs_are_cumulative_and_only_there_when_asked_for(target: Target, model: str):
    replies = target.ask(model, streaming=True, end_id=-1, return_log_probs=True, runtime_top_k=1)
    with_tokens = [reply.outputs for reply in replies if reply.outputs and reply.outputs["output_ids"].size]
    seen = 0
    for outputs in with_tokens:
        seen += outputs["output_ids"].size
        assert outputs["output_log_probs"].shape == (1, 1, seen)
        assert outputs["cum_log_probs"].item() == pytest.approx(outputs["output_log_probs"].sum(), abs=1e-2)
    plain = target.ask(model, streaming=False)
    assert not {"output_log_probs", "cum_log_probs"} & set(plain[0].outputs)


def test_samples_carry_their_index(target: Target, model: str):
    replies = target.ask(
        model,
        streaming=True,
        end_id=-1,
        num_return_sequences=2,
        runtime_top_p=0.9,
        temperature=1.0,
        seed=np.array([[7]], np.uint64),
    )
    counts = {0: 0, 1: 0}
    for reply in replies:
        if reply.outputs:
            counts[reply.outputs["sequence_index"].item()] += reply.outputs["output_ids"].size
    assert counts == {0: 4, 1: 4}


def test_counts_are_only_there_when_asked_for(target: Target, model: str):
    names = ("num_input_tokens", "num_output_tokens")
    (plain,) = (reply.outputs for reply in target.ask(model, streaming=False) if reply.outputs)
    assert not {*names, "kv_cache_reused_blocks", "sequence_index", "batch_index"} & set(plain)
    flags = {"return_num_input_tokens": True, "return_num_output_tokens": True, "return_perf_metrics": True}
    (counted,) = (reply.outputs for reply in target.ask(model, streaming=False, end_id=-1, **flags) if reply.outputs)
    assert counted["num_input_tokens"].item() == len(target.prompt)
    assert counted["num_output_tokens"].item() == 4
    assert counted["kv_cache_reused_blocks"].dtype == np.int32
    assert counted["first_token_time_ns"].item() <= counted["last_token_time_ns"].item()


def test_guide_holds_the_answer(target: Target, model: str):
    target.require(model, Capability.GUIDED)
    free = token_ids(target.ask(model, end_id=-1))
    guide = {
        "guided_decoding_guide_type": np.array([[b"regex"]], object),
        "guided_decoding_guide": np.array([[b"[0-9]{3}"]], object),
    }
    digits = token_ids(target.ask(model, max_tokens=12, **guide))
    assert digits != free
    assert 1 <= len(digits) <= 3  # three digits in one to three tokens, then the end


def test_stop_ends_the_request_of_the_same_id(target: Target, model: str):
    with Stream(target.url, model, target.tensors(max_tokens=400, end_id=-1), f"contract-{model}") as stream:
        first = stream.next()
        assert first.error is None
        assert [(reply.is_final, reply.error) for reply in stop(target.url, model, f"contract-{model}")][-1] == (True, None)
        started = time.monotonic()
        rest = list(stream.replies())
    assert rest[-1].is_final
    assert len(token_ids([first, *rest])) < 400
    assert time.monotonic() - started < _FAST_ENOUGH_S


def test_stop_of_an_unknown_id_is_no_error_and_of_an_empty_one_is(target: Target, model: str):
    assert stop(target.url, model, "never-heard-of")[-1].error is None
    tensors = {"stop": np.array([[True]]), **{name: target.tensors()[name] for name in ("input_lengths", "request_output_len")}}
    with Stream(target.url, model, tensors, "") as stream:
        assert stream.next().error is not None


@pytest.mark.parametrize(
    ("changes", "removed"),
    [
        ({"request_output_len": 0}, ()),
        ({}, ("input_ids",)),
        ({"retention_token_range_starts": 0}, ()),
        ({"end_id": 10_000_000}, ()),
    ],
    ids=["no tokens wanted", "no prompt", "a range without an end", "an end token outside the vocabulary"],
)
def test_request_that_cannot_be_answered_is_an_error_and_the_engine_lives_on(target: Target, model: str, changes, removed):
    tensors = {name: array for name, array in target.tensors(**changes).items() if name not in removed}
    replies = ask(target.url, model, tensors)
    assert replies[-1].error is not None
    assert token_ids(target.ask(model))
