"""Tiny models on disk: a Hugging Face folder with seeded random weights, as a user would give one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tandem.models.config import ModelConfig, parse_hf_config
from tandem.models.weights import expected_shapes

BASE_CONFIG = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000.0,
    "tie_word_embeddings": False,
}


def random_weights(config: ModelConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Every tensor of the model; norms near one, projections small enough that nothing saturates."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in expected_shapes(config).items():
        spread = 0.3 if len(shape) == 1 else 1.5 / np.sqrt(shape[1])
        centre = 1.0 if "norm" in name else 0.0
        weights[name] = rng.normal(centre, spread, shape).astype(np.float32)
    return weights


def write_hf_folder(folder: Path, *, shards: int = 1, seed: int = 0, **changes: object) -> dict[str, np.ndarray]:
    """Write a whole model folder; ``changes`` go into config.json. Returns its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = BASE_CONFIG | changes
    (folder / "config.json").write_text(json.dumps(raw))
    weights = random_weights(parse_hf_config(raw, "test"), seed)
    write_weights(folder, weights, shards)
    write_tokenizer(folder)
    return weights


def write_weights(folder: Path, weights: dict[str, np.ndarray], shards: int = 1) -> None:
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
        return
    names = sorted(weights)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: weights[name] for name in names[shard::shards]}
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def write_tokenizer(folder: Path) -> None:
    """Byte-level, without merges: every byte is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: index for index, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "!", "chat_template": "{{ messages[0].content }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
