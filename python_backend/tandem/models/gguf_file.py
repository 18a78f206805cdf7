"""A GGUF file as a weight source: dequantized one tensor at a time with the ``gguf`` package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tandem.errors import SetupError
from tandem.models.config import (
    Architecture,
    FactorScaling,
    LinearScaling,
    ModelConfig,
    RopeScaling,
    check_sliding_window,
    parse_architecture,
)
from tandem.models.gguf_tokenizer import write_gguf_tokenizer
from tandem.models.weights import Float32Array, expected_shapes

_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_LAYER_NAMES = {
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
_ROPE_FACTORS = "rope_freqs.weight"


class GgufFile:
    """Implements :class:`tandem.models.weights.WeightSource`. The file stays memory-mapped as long as this object lives."""

    def __init__(self, path: Path) -> None:
        """Raises: SetupError when the file is missing, damaged or of an unsupported architecture."""
        self._path = path
        try:
            reader = gguf.GGUFReader(path)
            self._metadata: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
        except FileNotFoundError:
            raise SetupError(f"{path}: there is no such file; give the path of a GGUF file or a model folder") from None
        except (ValueError, OSError, IndexError, KeyError) as error:
            raise SetupError(f"{path}: this is not a readable GGUF file ({error}); fetch it again") from error
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._config = self._parse_config()
        self._shapes = expected_shapes(self._config)

    @property
    def origin(self) -> Path:
        return self._path

    @property
    def config(self) -> ModelConfig:
        return self._config

    def write_tokenizer(self, folder: Path) -> None:
        write_gguf_tokenizer(self._metadata, str(self._path), folder)

    def tensor(self, name: str) -> Float32Array:
        array = self._dequantize(_gguf_name(name))
        if self._config.architecture is Architecture.LLAMA:
            # Of the families we know only "llama" files hold q and k with the rows of a rotary pair side by side.
            if ".q_proj." in name:
                array = _split_rotary_pairs(array, self._config.num_heads)
            elif ".k_proj." in name:
                array = _split_rotary_pairs(array, self._config.num_kv_heads)
        if array.shape != self._shapes[name]:
            raise SetupError(f"{self._path}: {name} has shape {array.shape}, the metadata ask for {self._shapes[name]}")
        return array

    def _dequantize(self, name: str) -> Float32Array:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise SetupError(f"{self._path}: the tensor {name} is missing; the file is incomplete")
        try:
            return np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        except NotImplementedError:
            kind = tensor.tensor_type.name
            raise SetupError(f"{self._path}: {name} is quantized as {kind}, which cannot be read here") from None

    def _parse_config(self) -> ModelConfig:
        origin = str(self._path)
        architecture = parse_architecture(self._metadata.get("general.architecture"), origin)
        prefix = architecture.value
        if self._metadata.get(f"{prefix}.expert_count"):
            raise SetupError(f"{origin}: the model is a mixture of experts, which is not supported")
        hidden_size = self._int(f"{prefix}.embedding_length")
        num_heads = self._int(f"{prefix}.attention.head_count")
        max_position_embeddings = self._int(f"{prefix}.context_length")
        window = self._metadata.get(f"{prefix}.attention.sliding_window")
        check_sliding_window(window, max_position_embeddings, origin)
        return ModelConfig(
            architecture=architecture,
            vocab_size=len(self._metadata.get("tokenizer.ggml.tokens", ())) or self._int(f"{prefix}.vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=self._int(f"{prefix}.feed_forward_length"),
            num_layers=self._int(f"{prefix}.block_count"),
            num_heads=num_heads,
            num_kv_heads=self._int(f"{prefix}.attention.head_count_kv", num_heads),
            head_dim=self._int(f"{prefix}.attention.key_length", hidden_size // num_heads),
            max_position_embeddings=max_position_embeddings,
            rms_norm_eps=_decimal(self._metadata.get(f"{prefix}.attention.layer_norm_rms_epsilon", 1e-5)),
            rope_theta=float(self._metadata.get(f"{prefix}.rope.freq_base", 10000.0)),
            rope_scaling=self._rope_scaling(prefix, origin),
            has_tied_embeddings="output.weight" not in self._tensors,
            has_qkv_bias="blk.0.attn_q.bias" in self._tensors,
            has_output_bias="blk.0.attn_output.bias" in self._tensors,
            has_mlp_bias="blk.0.ffn_down.bias" in self._tensors,
            has_qk_norm="blk.0.attn_q_norm.weight" in self._tensors,
        )

    def _int(self, key: str, default: int | None = None) -> int:
        value = self._metadata.get(key, default)
        if not isinstance(value, int):
            raise SetupError(f"{self._path}: the metadata field {key} is {value!r}; a whole number is needed")
        return value

    def _rope_scaling(self, prefix: str, origin: str) -> RopeScaling | None:
        if _ROPE_FACTORS in self._tensors:
            return FactorScaling(tuple(float(factor) for factor in self._dequantize(_ROPE_FACTORS)))
        kind = self._metadata.get(f"{prefix}.rope.scaling.type", "none")
        if kind == "none":
            return None
        if kind == "linear":
            return LinearScaling(float(self._metadata[f"{prefix}.rope.scaling.factor"]))
        raise SetupError(f"{origin}: rope scaling {kind!r} is not supported; supported: none, linear")


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_LAYER_NAMES[part]}.{kind}"


def _split_rotary_pairs(array: Float32Array, num_heads: int) -> Float32Array:
    """Rows of one head (a0 b0 a1 b1 …) -> (a0 a1 … b0 b1 …); works for weights and biases alike."""
    pairs: Sequence[int] = (num_heads, array.shape[0] // num_heads // 2, 2, *array.shape[1:])
    return np.ascontiguousarray(array.reshape(pairs).swapaxes(1, 2)).reshape(array.shape)


def _decimal(value: float) -> float:
    """The decimal number behind a float32, so that 9.999999747e-06 reads 1e-05 as in the model's own config."""
    return float(f"{value:.6g}")
