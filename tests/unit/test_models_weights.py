"""Weight sources: folders and GGUF files, good and bad."""

import json
import shutil

import gguf
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from tandem.errors import SetupError
from tandem.models.config import Architecture, FactorScaling, LinearScaling, Llama3Scaling, parse_hf_config
from tandem.models.gguf_file import GgufFile
from tandem.models.hf_folder import HfFolder
from tests.tiny_checkpoint import BASE_CONFIG, random_weights, write_hf_folder

GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def interleave_pairs(rows, num_heads):
    """What llama.cpp's converter does to q and k: pair i of a head takes the rows 2i and 2i + 1."""
    out = np.empty_like(rows)
    head_dim = len(rows) // num_heads
    for head in range(num_heads):
        for i in range(head_dim // 2):
            out[head * head_dim + 2 * i] = rows[head * head_dim + i]
            out[head * head_dim + 2 * i + 1] = rows[head * head_dim + head_dim // 2 + i]
    return out


def write_gguf(path, *, architecture="llama", pre="smollm", skip=(), extra=(), **changes):
    """A GGUF file of the tiny model with byte tokens; returns the weights under their Hugging Face names."""
    config = parse_hf_config(BASE_CONFIG | {"model_type": architecture} | changes, "test")
    weights = random_weights(config)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_layers)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    tokens = ["<|end|>", "<|user|>", *(chr(0x100 + i) for i in range(68)), *map(chr, range(33, 127)), "ab"]
    tokens += [f"<unused{i}>" for i in range(config.vocab_size - len(tokens))]
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_chat_template("{{ messages }}")
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    for name, array in weights.items():
        if name in skip:
            continue
        if name.startswith("model.layers."):
            _, _, layer, part = name.split(".", 3)
            stem, _, kind = part.rpartition(".")
            target = f"blk.{layer}.{GGUF_NAMES[stem]}.{kind}"
        else:
            target = names.get(name, "output.weight")
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            array = interleave_pairs(array, config.num_heads if "q_proj" in name else config.num_kv_heads)
        writer.add_tensor(target, array)
    for name, array in extra:
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return config, weights


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [("llama", {}), ("llama", {"tie_word_embeddings": True}), ("qwen2", {}), ("qwen3", {"head_dim": 32})],
)
def test_gguf_when_read_then_gives_config_and_weights_of_the_original(tmp_path, architecture, changes):
    config, weights = write_gguf(tmp_path / "m.gguf", architecture=architecture, **changes)
    source = GgufFile(tmp_path / "m.gguf")
    assert source.config == config
    for name, array in weights.items():
        np.testing.assert_array_equal(source.tensor(name), array, err_msg=name)


def test_gguf_when_it_holds_rope_factors_then_they_scale_the_frequencies(tmp_path):
    factors = np.linspace(1, 4, 8, dtype=np.float32)
    config, _ = write_gguf(tmp_path / "m.gguf", extra=[("rope_freqs.weight", factors)])
    scaled = GgufFile(tmp_path / "m.gguf").config
    assert isinstance(scaled.rope_scaling, FactorScaling)
    np.testing.assert_allclose(scaled.inverse_frequencies(), config.inverse_frequencies() / factors)


def test_gguf_tokenizer_when_written_then_splits_digits_and_keeps_control_tokens(tmp_path):
    write_gguf(tmp_path / "m.gguf")
    GgufFile(tmp_path / "m.gguf").write_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("ab12<|end|>").tokens == ["ab", "1", "2", "<|end|>"]
    assert tokenizer.decode(tokenizer.encode("x ab").ids) == "x ab"
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (config["eos_token"], config["bos_token"], config["pad_token"]) == ("<|end|>", "<|user|>", None)
    assert config["chat_template"] == "{{ messages }}"
    assert config["additional_special_tokens"] == ["<|end|>", "<|user|>"]


def test_gguf_tokenizer_when_pre_tokenizer_is_unknown_then_one_sentence(tmp_path):
    write_gguf(tmp_path / "m.gguf", pre="deepseek-llm")
    with pytest.raises(SetupError, match=r"pre-tokenizer 'deepseek-llm'.*smollm, qwen2, gpt-2"):
        GgufFile(tmp_path / "m.gguf").write_tokenizer(tmp_path)


def test_gguf_when_architecture_is_unknown_then_names_file_found_and_supported(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(SetupError, match=r"m\.gguf: the architecture is 'mamba'; supported: llama, mistral, qwen2, qwen3"):
        GgufFile(tmp_path / "m.gguf")


def test_gguf_when_a_tensor_is_missing_then_names_it(tmp_path):
    write_gguf(tmp_path / "m.gguf", skip={"model.layers.1.mlp.up_proj.weight"})
    with pytest.raises(SetupError, match=r"blk\.1\.ffn_up\.weight is missing"):
        GgufFile(tmp_path / "m.gguf").tensor("model.layers.1.mlp.up_proj.weight")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all, but long enough to be read"])
def test_gguf_when_it_is_no_gguf_then_one_sentence(tmp_path, content):
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(SetupError, match="not a readable GGUF file"):
        GgufFile(tmp_path / "m.gguf")


def test_gguf_when_it_does_not_exist_then_one_sentence(tmp_path):
    with pytest.raises(SetupError, match="there is no such file"):
        GgufFile(tmp_path / "m.gguf")


@pytest.mark.parametrize("shards", [1, 3])
def test_folder_when_read_then_gives_its_weights(tmp_path, shards):
    weights = write_hf_folder(tmp_path, shards=shards)
    source = HfFolder(tmp_path)
    for name, array in weights.items():
        np.testing.assert_array_equal(source.tensor(name), array)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float64])
def test_folder_when_weights_are_of_another_float_type_then_read_as_float32(tmp_path, dtype):
    weights = write_hf_folder(tmp_path)
    save_file({name: array.astype(dtype) for name, array in weights.items()}, tmp_path / "model.safetensors")
    tensor = HfFolder(tmp_path).tensor("lm_head.weight")
    assert tensor.dtype == np.float32
    np.testing.assert_array_equal(tensor, weights["lm_head.weight"].astype(dtype).astype(np.float32))


def test_folder_when_chat_template_is_a_file_of_its_own_then_it_goes_into_the_config(tmp_path):
    write_hf_folder(tmp_path / "m")
    (tmp_path / "m/tokenizer_config.json").write_text('{"eos_token": "!"}')
    (tmp_path / "m/chat_template.jinja").write_text("{{ x }}")
    HfFolder(tmp_path / "m").write_tokenizer(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text()) == {"eos_token": "!", "chat_template": "{{ x }}"}
    assert (tmp_path / "tokenizer.json").read_bytes() == (tmp_path / "m/tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gpt2"}, "architecture is 'gpt2'; supported: llama, mistral, qwen2, qwen3"),
        ({"model_type": None}, "architecture is None"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, "rope scaling 'yarn' is not supported; supported: linear, llama3"),
        ({"model_type": "mistral", "sliding_window": 64}, "attention slides over 64 of 128 positions"),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True}, "attention slides over 64"),
        ({"hidden_size": "64"}, "hidden_size is '64'; a whole number is needed"),
        ({"num_key_value_heads": 3}, "4 attention heads over 3 key-value heads"),
        ({"head_dim": 15}, "head_dim 15"),
        ({"num_hidden_layers": 0}, "num_hidden_layers 0"),
        ({"quantization_config": {"quant_method": "gptq"}}, "already quantized"),
    ],
)
def test_config_when_it_cannot_be_served_then_one_sentence(changes, words):
    with pytest.raises(SetupError, match=words):
        parse_hf_config(BASE_CONFIG | changes, "some/config.json")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model_type": "qwen2"},
        {"model_type": "qwen3", "head_dim": 32, "attention_bias": True},
        {"model_type": "mistral", "sliding_window": 128, "mlp_bias": True},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "factors", "factors": [1.0] * 8}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                          "original_max_position_embeddings": 64}},
    ],
)  # fmt: skip
def test_config_when_written_and_read_back_then_is_the_same(changes):
    config = parse_hf_config(BASE_CONFIG | changes, "test")
    assert parse_hf_config(config.to_hf(), "test") == config


def test_config_when_sizes_are_left_out_then_the_usual_defaults_hold():
    raw = {name: value for name, value in BASE_CONFIG.items() if name not in ("num_key_value_heads", "rope_theta")}
    config = parse_hf_config(raw, "test")
    assert (config.architecture, config.num_kv_heads, config.head_dim) == (Architecture.LLAMA, 4, 16)
    assert (config.rope_theta, config.rope_scaling, config.has_qkv_bias) == (10000.0, None, False)


def test_config_when_rope_is_scaled_then_kinds_are_told_apart():
    linear = parse_hf_config(BASE_CONFIG | {"rope_scaling": {"type": "linear", "factor": 2}}, "test")
    assert linear.rope_scaling == LinearScaling(2.0)
    assert not isinstance(linear.rope_scaling, Llama3Scaling)


def remove_tensor(folder, weights):
    del weights["model.layers.0.self_attn.o_proj.weight"]
    save_file(weights, folder / "model.safetensors")


def change_shape(folder, weights):
    weights["model.norm.weight"] = np.ones(63, dtype=np.float32)
    save_file(weights, folder / "model.safetensors")


def only_pickle(folder, _):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def cut_short(folder, _):
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate((folder / "model.safetensors").stat().st_size - 9000)


def read_all(folder, names):
    source = HfFolder(folder)
    for name in names:
        source.tensor(name)


DAMAGES = {
    "config missing": (lambda folder, _: (folder / "config.json").unlink(), "config.json is missing"),
    "config no JSON": (lambda folder, _: (folder / "config.json").write_text("{"), "no readable JSON"),
    "config no object": (lambda folder, _: (folder / "config.json").write_text("[]"), "a JSON object is needed"),
    "tokenizer missing": (lambda folder, _: (folder / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "weights missing": (lambda folder, _: (folder / "model.safetensors").unlink(), "there are no weights in it"),
    "only pickle": (only_pickle, "only .bin files in it; supported: model.safetensors"),
    "tensor missing": (remove_tensor, "1 tensors are missing, the first is model.layers.0.self_attn.o_proj.weight"),
    "other shape": (change_shape, r"model.norm.weight has shape \(63,\), config.json asks for \(64,\)"),
    "cut short": (cut_short, "cut short"),
    "no safetensors": (lambda folder, _: (folder / "model.safetensors").write_bytes(b"\xff" * 40), "not a readable safetensors"),
    "folder missing": (lambda folder, _: shutil.rmtree(folder), "there is no such folder"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_folder_when_something_is_wrong_then_one_sentence_naming_it(tmp_path, damage):
    weights = write_hf_folder(tmp_path / "m")
    break_it, words = DAMAGES[damage]
    break_it(tmp_path / "m", weights)
    with pytest.raises(SetupError, match=words) as caught:
        read_all(tmp_path / "m", weights)
    assert str(tmp_path) in caught.value.message


def test_shards_when_one_file_is_missing_then_names_it(tmp_path):
    write_hf_folder(tmp_path, shards=2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(SetupError, match=r"model-00002-of-00002\.safetensors: the file is missing"):
        HfFolder(tmp_path)
