"""Where the numbers of a decoder come from: one tensor at a time, so that the whole model is never in memory twice.

Tensors have the names of Hugging Face's Llama-type models (``model.layers.0.self_attn.q_proj.weight``) and its row order of rotary
pairs (first half, second half), whatever the file says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tandem.models.config import ModelConfig

Float32Array = npt.NDArray[np.float32]

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"


class WeightSource(Protocol):
    """One model on disk."""

    @property
    def origin(self) -> Path:
        """The file or folder the user named."""
        ...

    @property
    def config(self) -> ModelConfig: ...

    def tensor(self, name: str) -> Float32Array:
        """A float32 array of the caller's own. Raises: SetupError when it is missing or has an unexpected shape."""
        ...

    def write_tokenizer(self, folder: Path) -> None:
        """Write ``tokenizer.json`` and ``tokenizer_config.json`` into ``folder``. Raises: SetupError."""
        ...


def layer_tensor(layer: int, part: str) -> str:
    """``layer_tensor(0, "mlp.down_proj.weight")`` -> ``model.layers.0.mlp.down_proj.weight``."""
    return f"model.layers.{layer}.{part}"


def expected_shapes(config: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """Every tensor the graph builder asks for, with its shape."""
    return dict(_expected_shapes(config))


def _expected_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key_value = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield EMBEDDING, (config.vocab_size, hidden)
    yield FINAL_NORM, (hidden,)
    if not config.has_tied_embeddings:
        yield LM_HEAD, (config.vocab_size, hidden)
    projections = (
        ("self_attn.q_proj", query, hidden, config.has_qkv_bias),
        ("self_attn.k_proj", key_value, hidden, config.has_qkv_bias),
        ("self_attn.v_proj", key_value, hidden, config.has_qkv_bias),
        ("self_attn.o_proj", hidden, query, config.has_output_bias),
        ("mlp.gate_proj", inner, hidden, config.has_mlp_bias),
        ("mlp.up_proj", inner, hidden, config.has_mlp_bias),
        ("mlp.down_proj", hidden, inner, config.has_mlp_bias),
    )
    for layer in range(config.num_layers):
        for part, rows, columns, has_bias in projections:
            yield layer_tensor(layer, f"{part}.weight"), (rows, columns)
            if has_bias:
                yield layer_tensor(layer, f"{part}.bias"), (rows,)
        yield layer_tensor(layer, "input_layernorm.weight"), (hidden,)
        yield layer_tensor(layer, "post_attention_layernorm.weight"), (hidden,)
        if config.has_qk_norm:
            yield layer_tensor(layer, "self_attn.q_norm.weight"), (config.head_dim,)
            yield layer_tensor(layer, "self_attn.k_norm.weight"), (config.head_dim,)
