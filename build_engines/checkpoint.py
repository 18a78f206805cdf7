"""Mend and check the ``config.json`` of a TensorRT-LLM checkpoint against the Hugging Face model it was made from.

Without tensorrt_llm installed, modelopt writes a generic config: no rotary base, a head size of its own guess. A build takes it
without a word and the engine then writes nonsense. So every value is set from the model's own config, and the tensors are held
against it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tandem.errors import SetupError
from tandem.models.config import ModelConfig, parse_hf_config

_QKV = "transformer.layers.0.attention.qkv.weight"


def patch_checkpoint(folder: Path, model_dir: Path) -> dict[str, tuple[object, object]]:
    """Write what the model says into the checkpoint's config; returns what was changed: key -> (before, after).

    Raises: SetupError when a file is missing or broken.
    """
    path = folder / "config.json"
    config = _read(path)
    wanted = expected_fields(_read(model_dir / "config.json"), str(model_dir))
    changes = {key: (config.get(key), value) for key, value in wanted.items() if config.get(key) != value}
    if changes:
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps({**config, **wanted}, indent=2) + "\n", encoding="utf-8")
        fresh.replace(path)
    return changes


def check_checkpoint(folder: Path, model_dir: Path) -> tuple[str, ...]:
    """Everything that does not fit, one sentence each; empty when the checkpoint may be built. Raises: SetupError."""
    raw = _read(folder / "config.json")
    wanted = expected_fields(_read(model_dir / "config.json"), str(model_dir))
    wrong = [f"{key} is {raw.get(key)!r} and the model says {value!r}" for key, value in wanted.items() if raw.get(key) != value]
    world_size = raw.get("mapping", {}).get("world_size", 1)
    for rank in range(world_size):
        file = folder / f"rank{rank}.safetensors"
        if not file.is_file():
            wrong.append(f"{file.name} of {world_size} ranks is missing")
    first = folder / "rank0.safetensors"
    if first.is_file():
        wrong += _check_qkv(first, raw, wanted)
    return tuple(wrong)


def expected_fields(hf: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The values of a checkpoint's config.json that follow from the model. Raises: SetupError for a model of unknown kind."""
    config: ModelConfig = parse_hf_config(hf, where)
    architecture = (hf.get("architectures") or [f"{config.architecture.value.capitalize()}ForCausalLM"])[0]
    fields: dict[str, Any] = {
        "architecture": architecture,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_size": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "hidden_act": "silu",
        "norm_epsilon": config.rms_norm_eps,
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": config.rope_theta,
        "rotary_scaling": hf.get("rope_scaling"),
        "logits_dtype": "float32",
    }
    if config.architecture.value.startswith("qwen"):
        fields["qwen_type"] = config.architecture.value
    return fields


def _check_qkv(file: Path, raw: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Rows of the fused query, key and value projection of rank 0: (heads + 2 x KV heads) x head size / tp."""
    tensors = _header(file)
    if _QKV not in tensors:
        return [f"{file.name} holds no {_QKV}"]
    tp = raw.get("mapping", {}).get("tp_size", 1)
    heads = wanted["num_attention_heads"] + 2 * max(wanted["num_key_value_heads"], tp)
    expected = heads * wanted["head_size"] * wanted["hidden_size"] // tp
    per_value = 2 if "W4" in str(raw.get("quantization", {}).get("quant_algo")) else 1  # two 4-bit weights in a byte
    found = per_value
    for size in tensors[_QKV]["shape"]:
        found *= size
    if found != expected:
        return [f"{_QKV} holds {found} weights and heads, head size and hidden size of the model make {expected}"]
    return []


def _header(file: Path) -> dict[str, Any]:
    """The table of a safetensors file, without its tensors. Raises: SetupError."""
    try:
        with file.open("rb") as source:
            (length,) = struct.unpack("<Q", source.read(8))
            header: dict[str, Any] = json.loads(source.read(length))
    except (OSError, ValueError, struct.error) as error:
        raise SetupError(f"{file}: no readable safetensors file ({type(error).__name__}); export it again") from error
    return header


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SetupError(f"{path} cannot be read ({type(error).__name__})") from error
    if not isinstance(content, dict):
        raise SetupError(f"{path} is no JSON object")
    return content
