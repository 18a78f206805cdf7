"""The shape of a decoder: what its memory, its parallel splits and its quantization groups depend on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_engines.kv_plan import KvShape
from tandem.errors import SetupError


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes as in Hugging Face's config.json; ``family`` is its ``model_type``. ``tokenizer`` names models of one vocabulary."""

    family: str
    tokenizer: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    max_position_embeddings: int
    has_tied_embeddings: bool = False

    @property
    def kv(self) -> KvShape:
        return KvShape(self.num_layers, self.num_kv_heads, self.head_size)

    @property
    def num_layer_weights(self) -> int:
        """Weights of the linear layers of all decoder layers: what quantization makes smaller."""
        query, key_value = self.num_heads * self.head_size, self.num_kv_heads * self.head_size
        attention = self.hidden_size * (query + 2 * key_value) + query * self.hidden_size
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def num_embedding_weights(self) -> int:
        """Of the embedding; the LM head has as many. Both stay in 16 bits."""
        return self.vocab_size * self.hidden_size

    @property
    def num_weights(self) -> int:
        return self.num_layer_weights + self.num_embedding_weights * (1 if self.has_tied_embeddings else 2)

    def row_sizes(self, tp: int = 1) -> dict[str, int]:
        """Input size of each quantized layer on one rank: tensor parallelism cuts the rows of ``o_proj`` and ``down_proj``."""
        return {
            "qkv_proj": self.hidden_size,
            "o_proj": self.num_heads * self.head_size // tp,
            "gate_up_proj": self.hidden_size,
            "down_proj": self.intermediate_size // tp,
        }


_LLAMA3, _QWEN25, _QWEN3 = "llama-3", "qwen2.5", "qwen3"

SHAPES: Mapping[str, ModelShape] = {
    "Qwen/Qwen2.5-7B-Instruct": ModelShape("qwen2", _QWEN25, 28, 3584, 18944, 28, 4, 128, 152064, 32768),
    "Qwen/Qwen2.5-14B-Instruct": ModelShape("qwen2", _QWEN25, 48, 5120, 13824, 40, 8, 128, 152064, 32768),
    "Qwen/Qwen2.5-32B-Instruct": ModelShape("qwen2", _QWEN25, 64, 5120, 27648, 40, 8, 128, 152064, 32768),
    "Qwen/Qwen2.5-72B-Instruct": ModelShape("qwen2", _QWEN25, 80, 8192, 29568, 64, 8, 128, 152064, 32768),
    "Qwen/Qwen3-8B": ModelShape("qwen3", _QWEN3, 36, 4096, 12288, 32, 8, 128, 151936, 40960),
    "Qwen/Qwen3-32B": ModelShape("qwen3", _QWEN3, 64, 5120, 25600, 64, 8, 128, 151936, 40960),
    "meta-llama/Llama-3.1-8B-Instruct": ModelShape("llama", _LLAMA3, 32, 4096, 14336, 32, 8, 128, 128256, 131072),
    "meta-llama/Llama-3.3-70B-Instruct": ModelShape("llama", _LLAMA3, 80, 8192, 28672, 64, 8, 128, 128256, 131072),
    "mistralai/Mistral-7B-Instruct-v0.3": ModelShape("mistral", "mistral-v3", 32, 4096, 14336, 32, 8, 128, 32768, 32768),
    "HuggingFaceTB/SmolLM2-135M-Instruct": ModelShape("llama", "smollm2", 30, 576, 1536, 9, 3, 64, 49152, 8192, True),
}
"""Models whose shape needs no file, by their name on the model hub."""


def find_shape(model: str, where: str) -> ModelShape:
    """The shape of a known model, or of a folder with ``config.json``. Raises: SetupError."""
    if model in SHAPES:
        return SHAPES[model]
    path = Path(model).expanduser() / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SetupError(
            f"{where}: model {model!r} is none of {', '.join(SHAPES)}, and {path} cannot be read ({type(error).__name__})"
        ) from error
    return shape_from_hf(raw, str(path))


def shape_from_hf(raw: Mapping[str, Any], where: str) -> ModelShape:
    """From the content of a Hugging Face config.json. Raises: SetupError naming the key."""
    num_heads = _size(raw, "num_attention_heads", where)
    hidden_size = _size(raw, "hidden_size", where)
    family = str(raw.get("model_type"))
    vocab_size = _size(raw, "vocab_size", where)
    return ModelShape(
        family=family,
        tokenizer=f"{family}-{vocab_size}",
        num_layers=_size(raw, "num_hidden_layers", where),
        hidden_size=hidden_size,
        intermediate_size=_size(raw, "intermediate_size", where),
        num_heads=num_heads,
        num_kv_heads=raw.get("num_key_value_heads") or num_heads,
        head_size=raw.get("head_dim") or hidden_size // num_heads,
        vocab_size=vocab_size,
        max_position_embeddings=_size(raw, "max_position_embeddings", where),
        has_tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
    )


def _size(raw: Mapping[str, Any], key: str, where: str) -> int:
    value = raw.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SetupError(f"{where}: {key} is {value!r}; a whole number above 0 is needed")
    return value
