"""The OpenVINO decoder against the naive numpy one, on tiny models of every supported family."""

import json

import numpy as np
import openvino as ov
import pytest

from tandem.errors import EngineFailure, SetupError
from tandem.models.decoder import DecoderBatch
from tandem.models.graph import build_graph
from tandem.models.hf_folder import HfFolder
from tandem.models.openvino_decoder import load_decoder
from tests.naive_decoder import naive_logits
from tests.paged_driver import PagedDriver, greedy_alone, greedy_mixed
from tests.tiny_checkpoint import write_hf_folder, write_weights

TOLERANCE = 1e-4
NUM_BLOCKS = 24
PROMPT = [(7 * i * i + 3 * i + 11) % 300 for i in range(45)]  # more than one block of 32
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES = {
    "llama": {},
    "llama_tied": {"tie_word_embeddings": True},
    "llama_biases": {"attention_bias": True, "mlp_bias": True},
    "llama_head_dim": {"head_dim": 24, "num_key_value_heads": 4},
    "llama_linear_rope": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "llama3_rope": {"rope_scaling": LLAMA3_SCALING},
    "llama3_rope_parameters": {"rope_theta": None, "rope_parameters": {**LLAMA3_SCALING, "rope_theta": 500.0}},
    "mistral": {"model_type": "mistral", "num_key_value_heads": 1, "sliding_window": None},
    "qwen2": {"model_type": "qwen2", "sliding_window": 32, "use_sliding_window": False},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True},
}


def make_engine(folder, **changes):
    """An f32 engine folder of a tiny model; returns its config and weights."""
    weights = write_hf_folder(folder / "model", **changes)
    return compile_folder(folder), weights


def compile_folder(folder):
    source = HfFolder(folder / "model")
    ov.save_model(build_graph(source), folder / "model.xml", compress_to_fp16=False)
    (folder / "config.json").write_text(json.dumps(source.config.to_hf()))
    return source.config


def load(folder, **options):
    return load_decoder(folder, **({"kv_cache_dtype": "f32", "num_blocks": NUM_BLOCKS, "num_threads": 1} | options))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    config, weights = make_engine(folder)
    return folder, config, weights


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_when_prompt_is_prefilled_then_equal_naive_reference(tmp_path, family):
    config, weights = make_engine(tmp_path, **FAMILIES[family])
    output = PagedDriver(load(tmp_path)).step([("a", PROMPT, len(PROMPT))])
    expected = naive_logits(config, weights, PROMPT)
    assert np.abs(expected).max() > 1.0
    np.testing.assert_allclose(output.logits, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("chunk_tokens", [1, 5, 32, 33])
def test_logits_when_prompt_comes_in_chunks_then_equal_naive_reference(tiny, chunk_tokens):
    folder, config, weights = tiny
    driver = PagedDriver(load(folder))
    rows = [driver.step([("a", PROMPT[i : i + chunk_tokens], 1)]).logits[0].copy() for i in range(0, len(PROMPT), chunk_tokens)]
    ends = [min(i + chunk_tokens, len(PROMPT)) - 1 for i in range(0, len(PROMPT), chunk_tokens)]
    np.testing.assert_allclose(rows, naive_logits(config, weights, PROMPT)[ends], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kv_cache_dtype", ["f32", "f16"])
def test_greedy_tokens_when_batches_are_mixed_then_equal_those_alone(tiny, kv_cache_dtype):
    decoder = load(tiny[0], kv_cache_dtype=kv_cache_dtype)
    prompts = [PROMPT[:1], PROMPT[3:20], PROMPT[:33], PROMPT[5:45]]
    alone = [greedy_alone(decoder, prompt, 12) for prompt in prompts]
    assert len({tuple(answer) for answer in alone}) == len(prompts)
    assert [greedy_alone(decoder, prompt, 12, chunk_tokens=7) for prompt in prompts] == alone
    for seed in range(3):
        assert greedy_mixed(decoder, prompts, 12, seed=seed) == alone


def test_statistics_when_compared_with_logits_then_agree(tiny):
    output = PagedDriver(load(tiny[0])).step([("a", PROMPT, 9)])
    logits = output.logits.astype(np.float64)
    log_sum_exp = np.log(np.exp(logits).sum(axis=-1))
    log_probs = logits - log_sum_exp[:, None]
    np.testing.assert_allclose(output.log_sum_exp, log_sum_exp, atol=1e-5, rtol=0)
    np.testing.assert_allclose(output.entropy, -(np.exp(log_probs) * log_probs).sum(axis=-1), atol=1e-5, rtol=0)
    assert output.argmax.tolist() == logits.argmax(axis=-1).tolist()
    assert output.logits.shape == (9, 300)


def test_argmax_when_logits_tie_then_lowest_id_wins(tmp_path):
    weights = write_hf_folder(tmp_path / "model")
    # Two families of equal rows, one the negative of the other and far longer than all others: one of them always wins.
    row = weights["lm_head.weight"][0] * 10_000
    weights["lm_head.weight"][[17, 120, 250]] = row
    weights["lm_head.weight"][[40, 41, 299]] = -row
    write_weights(tmp_path / "model", weights)
    compile_folder(tmp_path)
    winners = PagedDriver(load(tmp_path)).step([("a", PROMPT, len(PROMPT))]).argmax.tolist()
    assert set(winners) == {17, 40}


def test_forward_when_nothing_is_sampled_then_gives_no_rows_and_keeps_the_cache(tiny):
    folder, config, weights = tiny
    driver = PagedDriver(load(folder))
    assert driver.step([("a", PROMPT[:10], 0)]).logits.shape == (0, 300)
    output = driver.step([("a", PROMPT[10:11], 1)])
    np.testing.assert_allclose(output.logits[0], naive_logits(config, weights, PROMPT[:11])[-1], atol=TOLERANCE, rtol=0)


def test_copy_blocks_when_a_sequence_forks_then_both_go_on_by_themselves(tiny):
    folder, config, weights = tiny
    driver = PagedDriver(load(folder))
    driver.step([("a", PROMPT[:40], 0)])
    driver.fork("a", "b")
    output = driver.step([("a", [1, 2], 1), ("b", [3, 4], 1)])
    expected = [naive_logits(config, weights, PROMPT[:40] + tail)[-1] for tail in ([1, 2], [3, 4])]
    np.testing.assert_allclose(output.logits, expected, atol=TOLERANCE, rtol=0)


def test_forward_when_the_runtime_refuses_then_engine_failure_and_next_call_works(tiny):
    folder, config, weights = tiny
    decoder = load(folder)
    driver = PagedDriver(decoder)
    driver.step([("a", PROMPT[:10], 0)])
    ints = {"past_lens": [[0]], "subsequence_begins": [0, 4], "block_indices": [9], "block_indices_begins": [0, 1]}
    bad = DecoderBatch(
        input_ids=np.arange(4),
        position_ids=np.arange(4),
        max_context_len=4,
        sample_idx=np.array([3]),
        **{name: np.array(values, dtype=np.int32) for name, values in ints.items()},
    )
    for _ in range(2):
        with pytest.raises(EngineFailure, match="forward pass failed"):
            decoder.forward(bad)
    output = driver.step([("a", PROMPT[10:11], 1)])
    np.testing.assert_allclose(output.logits[0], naive_logits(config, weights, PROMPT[:11])[-1], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(("kv_cache_dtype", "bytes_per_value"), [("f32", 4), ("f16", 2)])
def test_info_when_loaded_then_states_the_sizes(tiny, kv_cache_dtype, bytes_per_value):
    info = load(tiny[0], kv_cache_dtype=kv_cache_dtype, max_seq_len=100).info
    assert (info.vocab_size, info.num_blocks, info.max_seq_len) == (300, NUM_BLOCKS, 100)
    assert info.block_size == 32
    assert info.kv_bytes_per_token == 2 * 2 * 2 * 16 * bytes_per_value  # layers, K and V, heads, head_dim


def test_u8_cache_when_loaded_then_takes_the_block_size_from_the_value_cache(tiny):
    info = load(tiny[0], kv_cache_dtype="u8").info
    assert info.block_size == 32
    assert info.kv_bytes_per_token < 2 * 2 * 2 * 16 * 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype is 'int8'; supported: f32, f16, u8"),
        ({"max_seq_len": 129}, "takes 1 to 128 tokens"),
        ({"max_seq_len": 0}, "takes 1 to 128 tokens"),
        ({"num_blocks": 0}, "num_blocks is 0"),
    ],
)
def test_load_when_an_option_is_wrong_then_one_sentence(tiny, options, words):
    with pytest.raises(SetupError, match=words):
        load(tiny[0], **options)


@pytest.mark.parametrize(("is_asked_for", "group_size"), [(False, 0), (True, 32)])
def test_dynamic_quantization_when_not_asked_for_then_is_off(tiny, monkeypatch, is_asked_for, group_size):
    compile_model, seen = ov.Core.compile_model, {}

    def spy(core, model, device, properties):
        seen.update(properties)
        return compile_model(core, model, device, properties)

    monkeypatch.setattr(ov.Core, "compile_model", spy)
    load(tiny[0], has_dynamic_quantization=is_asked_for)
    assert seen["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == group_size
    assert seen["INFERENCE_PRECISION_HINT"] == "f32"


def test_load_when_the_model_file_is_cut_short_then_one_sentence(tmp_path):
    make_engine(tmp_path)
    with (tmp_path / "model.bin").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(SetupError, match="cannot load the engine"):
        load(tmp_path)


def test_load_when_the_folder_is_empty_then_one_sentence(tmp_path):
    with pytest.raises(SetupError, match="config cannot be read"):
        load(tmp_path)
