"""The shape of a decoder: what a forward pass must know beside the weights.

Read from the ``config.json`` of a Hugging Face folder or from the metadata of a GGUF file; see ``hf_folder`` and ``gguf_file``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from tandem.errors import SetupError


class Architecture(str, Enum):
    """The decoder families the graph builder knows."""

    LLAMA = "llama"
    MISTRAL = "mistral"
    QWEN2 = "qwen2"
    QWEN3 = "qwen3"


SUPPORTED_ARCHITECTURES = ", ".join(architecture.value for architecture in Architecture)


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All positions divided by ``factor``."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Frequency bands of Llama 3.1: long waves are slowed by ``factor``, short ones kept, a smooth ramp between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class FactorScaling:
    """One divisor per frequency, as GGUF stores it (``rope_freqs.weight``)."""

    factors: tuple[float, ...]


RopeScaling = LinearScaling | Llama3Scaling | FactorScaling
# The names of config.json; "factors" is ours, for engines made from a GGUF.
_ROPE_SCALINGS = {"linear": LinearScaling, "llama3": Llama3Scaling, "factors": FactorScaling}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and switches of one decoder. Checked at construction; a value that cannot be served is a SetupError."""

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    has_tied_embeddings: bool = False
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False

    def __post_init__(self) -> None:
        sizes = {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.max_position_embeddings,
        }
        for name, value in sizes.items():
            if value < 1:
                raise SetupError(f"the model config has {name} {value}; a decoder needs a whole number above 0")
        if self.num_heads % self.num_kv_heads:
            raise SetupError(
                f"the model config has {self.num_heads} attention heads over {self.num_kv_heads} key-value heads; "
                "the first must be a multiple of the second"
            )
        if self.head_dim % 2:
            raise SetupError(f"the model config has head_dim {self.head_dim}; rotary embeddings need an even number")
        if not (math.isfinite(self.rms_norm_eps) and math.isfinite(self.rope_theta) and self.rope_theta > 0):
            raise SetupError(f"the model config has rope_theta {self.rope_theta} and rms_norm_eps {self.rms_norm_eps}")

    def inverse_frequencies(self) -> npt.NDArray[np.float64]:
        """Radians per position of each rotary pair. [head_dim / 2]"""
        exponents = np.arange(0, self.head_dim, 2, dtype=np.float64) / self.head_dim
        plain = self.rope_theta**-exponents
        match self.rope_scaling:
            case None:
                return plain
            case LinearScaling(factor):
                return plain / factor
            case FactorScaling(factors):
                return plain / np.asarray(factors, dtype=np.float64)
            case Llama3Scaling():
                return _scale_llama3(plain, self.rope_scaling)

    def to_hf(self) -> dict[str, Any]:
        """The same config in the form of a ``config.json``; :func:`parse_hf_config` reads it back."""
        return {
            "model_type": self.architecture.value,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.max_position_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": None if self.rope_scaling is None else _rope_scaling_to_hf(self.rope_scaling),
            "tie_word_embeddings": self.has_tied_embeddings,
            "attention_bias": self.has_output_bias,
            "qkv_bias": self.has_qkv_bias,
            "mlp_bias": self.has_mlp_bias,
            "hidden_act": "silu",
        }


def _rope_scaling_to_hf(scaling: RopeScaling) -> dict[str, Any]:
    kind = next(name for name, cls in _ROPE_SCALINGS.items() if isinstance(scaling, cls))
    return {"rope_type": kind, **asdict(scaling)}


def _scale_llama3(plain: npt.NDArray[np.float64], scaling: Llama3Scaling) -> npt.NDArray[np.float64]:
    turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)  # full turns inside the original context
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = np.clip(ramp, 0.0, 1.0)
    return plain * kept + plain / scaling.factor * (1.0 - kept)


def parse_hf_config(raw: Mapping[str, Any], origin: str) -> ModelConfig:
    """The content of a ``config.json``. Raises SetupError naming ``origin`` and what was found."""
    architecture = parse_architecture(raw.get("model_type"), origin)
    if raw.get("quantization_config"):
        raise SetupError(f"{origin}: the weights are already quantized; give a folder with float weights")
    hidden_act = raw.get("hidden_act", "silu")
    if hidden_act != "silu":
        raise SetupError(f"{origin}: hidden_act is {hidden_act!r}; supported: 'silu'")

    def size(name: str, default: int | None = None) -> int:
        value = raw.get(name)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int):
            raise SetupError(f"{origin}: {name} is {value!r}; a whole number is needed")
        return value

    hidden_size = size("hidden_size")
    num_heads = size("num_attention_heads")
    rope = raw.get("rope_parameters") or {}  # the form of transformers 5; older files have rope_theta and rope_scaling
    max_position_embeddings = size("max_position_embeddings")
    check_sliding_window(_sliding_window(raw), max_position_embeddings, origin)
    has_attention_bias = bool(raw.get("attention_bias", False))
    return ModelConfig(
        architecture=architecture,
        vocab_size=size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=size("intermediate_size"),
        num_layers=size("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=size("num_key_value_heads", num_heads),
        head_dim=size("head_dim", hidden_size // num_heads),
        max_position_embeddings=max_position_embeddings,
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=float(raw.get("rope_theta") or rope.get("rope_theta") or 10000.0),
        rope_scaling=_parse_rope_scaling(raw.get("rope_scaling") or rope, origin),
        has_tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        has_qkv_bias=bool(raw.get("qkv_bias", has_attention_bias or architecture is Architecture.QWEN2)),
        has_output_bias=has_attention_bias,
        has_mlp_bias=bool(raw.get("mlp_bias", False)),
        has_qk_norm=architecture is Architecture.QWEN3,
    )


def parse_architecture(found: object, origin: str) -> Architecture:
    """Raises: SetupError when the architecture is not one of ours."""
    try:
        return Architecture(found)
    except ValueError:
        raise SetupError(f"{origin}: the architecture is {found!r}; supported: {SUPPORTED_ARCHITECTURES}") from None


def check_sliding_window(window: int | None, max_position_embeddings: int, origin: str) -> None:
    """Refuse a window shorter than the context: full attention would then give other answers than the model's own."""
    if window is not None and window < max_position_embeddings:
        raise SetupError(
            f"{origin}: attention slides over {window} of {max_position_embeddings} positions, which is not supported; "
            f"set max_position_embeddings to at most {window} in a copy of the folder to use the model within its window"
        )


def _sliding_window(raw: Mapping[str, Any]) -> int | None:
    window = raw.get("sliding_window")
    is_used = raw.get("use_sliding_window", raw.get("model_type") == Architecture.MISTRAL.value)
    return int(window) if window is not None and is_used else None


def _parse_rope_scaling(raw: Mapping[str, Any], origin: str) -> RopeScaling | None:
    kind = raw.get("rope_type", raw.get("type", "default"))
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(float(raw["factor"]))
        case "llama3":
            return Llama3Scaling(
                factor=float(raw["factor"]),
                low_freq_factor=float(raw["low_freq_factor"]),
                high_freq_factor=float(raw["high_freq_factor"]),
                original_max_position_embeddings=int(raw["original_max_position_embeddings"]),
            )
        case "factors":
            return FactorScaling(tuple(float(factor) for factor in raw["factors"]))
        case _:
            raise SetupError(f"{origin}: rope scaling {kind!r} is not supported; supported: linear, llama3")
