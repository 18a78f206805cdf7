"""How much memory a KV cache takes: pure arithmetic from a model's shape, for every profile.

One token costs ``layers x KV heads x (key + value bytes of a head)``; a sequence takes whole blocks. The example that is often
given wrong: 80 layers, 8 KV heads, head size 128, FP16, 4,096 tokens, 16 sequences are 21,474,836,480 bytes, 20 GiB.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.errors import SetupError

DTYPES = ("f16", "int8", "fp8", "f32")
PROFILES = ("cpu", "trtllm", "llmapi")
DEFAULT_BLOCK_SIZE = 32
_VALUE_BYTES = {"f16": 2, "int8": 1, "fp8": 1, "f32": 4}

# OpenVINO's CPU plugin: its blocks hold 32 tokens; with u8 an f32 scale and an f32 zero point stand beside each key and each value.
_CPU_BLOCK_SIZE = 32
_CPU_SCALE_BYTES = 8


@dataclass(frozen=True, slots=True)
class KvShape:
    """What of a model its KV cache depends on."""

    num_layers: int
    num_kv_heads: int
    head_size: int

    def __post_init__(self) -> None:
        for name, value in (("layers", self.num_layers), ("KV heads", self.num_kv_heads), ("head size", self.head_size)):
            if value < 1:
                raise SetupError(f"the model has {name} {value}; give a whole number above 0")


PRESETS: Mapping[str, KvShape] = {
    "smollm2-135m": KvShape(30, 3, 64),
    "mistral-7b": KvShape(32, 8, 128),
    "llama-3.1-8b": KvShape(32, 8, 128),
    "llama-3.1-70b": KvShape(80, 8, 128),
    "qwen3-8b": KvShape(36, 8, 128),
    "qwen3-32b": KvShape(64, 8, 128),
}


@dataclass(frozen=True, slots=True)
class KvDemand:
    """What is to be held: ``concurrency`` sequences of ``seq_len`` tokens (prompt and completion).

    The first ``shared_prefix`` tokens are the same in all of them.
    """

    seq_len: int
    concurrency: int
    dtype: str = "f16"
    block_size: int = DEFAULT_BLOCK_SIZE
    shared_prefix: int = 0

    def __post_init__(self) -> None:
        for name, value in (("--seq", self.seq_len), ("--concurrency", self.concurrency), ("--block-size", self.block_size)):
            if value < 1:
                raise SetupError(f"{name} is {value}; give a whole number above 0")
        if self.dtype not in DTYPES:
            raise SetupError(f"--dtype is {self.dtype!r}; give one of {', '.join(DTYPES)}")
        if not 0 <= self.shared_prefix <= self.seq_len:
            raise SetupError(f"--shared-prefix is {self.shared_prefix}; give 0 to {self.seq_len} tokens, the length of a sequence")


@dataclass(frozen=True, slots=True)
class KvPlan:
    """The memory of one profile. ``bytes_per_token`` is exact up to the scales of a block, which are spread over its tokens."""

    profile: str
    dtype: str
    block_size: int
    bytes_per_token: float
    blocks_per_seq: int
    num_blocks: int
    total_bytes: int
    bytes_without_sharing: int
    notes: tuple[str, ...]


def plan(shape: KvShape, demand: KvDemand, profile: str) -> KvPlan | str:
    """The plan, or one sentence why this profile has no such cache."""
    if profile == "cpu" and demand.dtype == "fp8":
        return "OpenVINO's CPU plugin has no FP8 KV cache; use int8 (u8 there), f16 or f32"
    if profile != "cpu" and demand.dtype == "f32":
        return "TensorRT-LLM keeps keys and values in f16 (or bf16), int8 or fp8; f32 is not offered"
    block_size = _CPU_BLOCK_SIZE if profile == "cpu" else demand.block_size
    block_bytes = shape.num_layers * shape.num_kv_heads * _head_block_bytes(shape, demand.dtype, block_size, profile)
    blocks_per_seq = -(-demand.seq_len // block_size)
    # Whole blocks are shared; the last token of a prompt is always computed anew, so a block that ends with it is not.
    shared_blocks = min(demand.shared_prefix, demand.seq_len - 1) // block_size
    num_blocks = demand.concurrency * blocks_per_seq - (demand.concurrency - 1) * shared_blocks
    return KvPlan(
        profile=profile,
        dtype=demand.dtype,
        block_size=block_size,
        bytes_per_token=block_bytes / block_size,
        blocks_per_seq=blocks_per_seq,
        num_blocks=num_blocks,
        total_bytes=num_blocks * block_bytes,
        bytes_without_sharing=demand.concurrency * blocks_per_seq * block_bytes,
        notes=tuple(_notes(demand, profile)),
    )


def read_shape(model: str) -> KvShape:
    """The shape of a preset, or of a folder with ``config.json``, or of such a file. Raises: SetupError."""
    if model in PRESETS:
        return PRESETS[model]
    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SetupError(
            f"--model: {model} is no preset ({', '.join(PRESETS)}) and {path} cannot be read as a config ({error})"
        ) from error
    if not isinstance(raw, dict):
        raise SetupError(f"--model: {path} is no JSON object")
    return _shape_of(raw.get("text_config", raw), str(path))


def _shape_of(raw: Mapping[str, Any], where: str) -> KvShape:
    if "kv_lora_rank" in raw:
        raise SetupError(f"{where}: the model keeps a compressed KV cache (kv_lora_rank), which this calculator does not cover")
    num_heads = _number(raw, "num_attention_heads", where)
    head_size = raw.get("head_dim") or _number(raw, "hidden_size", where) // num_heads
    return KvShape(_number(raw, "num_hidden_layers", where), raw.get("num_key_value_heads") or num_heads, head_size)


def _number(raw: Mapping[str, Any], key: str, where: str) -> int:
    value = raw.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SetupError(f"{where}: {key} is {value!r}; a KV plan needs a whole number above 0")
    return value


def _head_block_bytes(shape: KvShape, dtype: str, block_size: int, profile: str) -> int:
    """Keys and values of one head in one block."""
    values = 2 * block_size * shape.head_size * _VALUE_BYTES[dtype]
    if profile == "cpu" and dtype == "int8":
        return values + 2 * _CPU_SCALE_BYTES * block_size
    return values


def _notes(demand: KvDemand, profile: str) -> list[str]:
    notes = []
    if profile == "cpu" and demand.block_size != _CPU_BLOCK_SIZE:
        notes.append(f"the CPU plugin's blocks hold {_CPU_BLOCK_SIZE} tokens, whatever is asked for")
    if profile == "cpu" and demand.dtype == "int8":
        notes.append("u8 with its scales; results depend on the batch, and seeds are exact only with f16 and f32")
    if profile == "trtllm" and demand.dtype == "int8":
        notes.append("INT8 switches paged context FMHA off, and with it KV reuse and chunked context; fp8 keeps them")
    if profile != "cpu" and demand.dtype in ("int8", "fp8"):
        notes.append("scales are per layer and fixed at calibration: no bytes per token")
    return notes
