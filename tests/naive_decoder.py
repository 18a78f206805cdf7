"""The decoder of the Llama family in plain numpy and float64: no cache, no batch, no cleverness.

Written from the papers (RMSNorm 1910.07467, rotary positions 2104.09864, SwiGLU 2002.05202, grouped queries 2305.13245) and from
nothing of ``tandem.models`` but the config's fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tandem.models.config import LinearScaling, Llama3Scaling, ModelConfig


def naive_logits(config: ModelConfig, weights: Mapping[str, np.ndarray], token_ids: Sequence[int]) -> np.ndarray:
    """Logits after every token. [num_tokens, vocab_size]"""
    get = {name: array.astype(np.float64) for name, array in weights.items()}
    hidden = get["model.embed_tokens.weight"][list(token_ids)]
    for layer in range(config.num_layers):
        part = {name.split(".", 3)[3]: array for name, array in get.items() if name.startswith(f"model.layers.{layer}.")}
        normed = rms_norm(hidden, part["input_layernorm.weight"], config.rms_norm_eps)
        hidden = hidden + attention(config, part, normed)
        normed = rms_norm(hidden, part["post_attention_layernorm.weight"], config.rms_norm_eps)
        gate, up = linear(part, "mlp.gate_proj", normed), linear(part, "mlp.up_proj", normed)
        hidden = hidden + linear(part, "mlp.down_proj", gate / (1 + np.exp(-gate)) * up)
    hidden = rms_norm(hidden, get["model.norm.weight"], config.rms_norm_eps)
    head = get["model.embed_tokens.weight"] if config.has_tied_embeddings else get["lm_head.weight"]
    return hidden @ head.T


def attention(config: ModelConfig, part: Mapping[str, np.ndarray], hidden: np.ndarray) -> np.ndarray:
    num_tokens = len(hidden)
    query = linear(part, "self_attn.q_proj", hidden).reshape(num_tokens, config.num_heads, config.head_dim)
    key = linear(part, "self_attn.k_proj", hidden).reshape(num_tokens, config.num_kv_heads, config.head_dim)
    value = linear(part, "self_attn.v_proj", hidden).reshape(num_tokens, config.num_kv_heads, config.head_dim)
    if "self_attn.q_norm.weight" in part:
        query = rms_norm(query, part["self_attn.q_norm.weight"], config.rms_norm_eps)
        key = rms_norm(key, part["self_attn.k_norm.weight"], config.rms_norm_eps)
    query, key = rotate(config, query), rotate(config, key)
    mixed = np.zeros((num_tokens, config.num_heads, config.head_dim))
    for head in range(config.num_heads):
        kv_head = head * config.num_kv_heads // config.num_heads
        for position in range(num_tokens):
            scores = key[: position + 1, kv_head] @ query[position, head] / np.sqrt(config.head_dim)
            shares = np.exp(scores - scores.max())
            mixed[position, head] = shares / shares.sum() @ value[: position + 1, kv_head]
    return linear(part, "self_attn.o_proj", mixed.reshape(num_tokens, -1))


def rotate(config: ModelConfig, heads: np.ndarray) -> np.ndarray:
    """Turn the pair (i, i + head_dim / 2) of every head by position times frequency."""
    half = config.head_dim // 2
    turned = np.empty_like(heads)
    for position in range(len(heads)):
        for i in range(half):
            angle = position * frequency(config, i)
            first, second = heads[position, :, i], heads[position, :, i + half]
            turned[position, :, i] = first * np.cos(angle) - second * np.sin(angle)
            turned[position, :, i + half] = second * np.cos(angle) + first * np.sin(angle)
    return turned


def frequency(config: ModelConfig, i: int) -> float:
    plain = config.rope_theta ** (-2 * i / config.head_dim)
    scaling = config.rope_scaling
    if scaling is None:
        return plain
    if isinstance(scaling, LinearScaling):
        return plain / scaling.factor
    assert isinstance(scaling, Llama3Scaling)
    wavelength = 2 * np.pi / plain
    if wavelength < scaling.original_max_position_embeddings / scaling.high_freq_factor:
        return plain
    if wavelength > scaling.original_max_position_embeddings / scaling.low_freq_factor:
        return plain / scaling.factor
    smooth = (scaling.original_max_position_embeddings / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    return (1 - smooth) * plain / scaling.factor + smooth * plain


def rms_norm(values: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return values / np.sqrt((values**2).mean(axis=-1, keepdims=True) + eps) * weight


def linear(part: Mapping[str, np.ndarray], name: str, hidden: np.ndarray) -> np.ndarray:
    return hidden @ part[f"{name}.weight"].T + part.get(f"{name}.bias", 0.0)
