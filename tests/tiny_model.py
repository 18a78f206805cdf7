"""A tiny decoder-only transformer in float64, twice: without a cache (the reference) and over paged KV blocks (a ``Decoder``).

RMS norm, rotary positions, grouped-query attention, SwiGLU, seeded weights: the shape of a Llama at a size where one forward pass
takes a fraction of a millisecond. The reference computes every position from scratch and shares no line with the paged path but the
layer arithmetic, so that an error of block tables, positions or chunks shows as other tokens. KV memory that no token was written
to holds NaN, so that reading a wrong slot cannot go unnoticed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tandem.models.decoder import DecoderBatch, DecoderInfo, DecoderOutput

VOCAB_SIZE = 61
MAX_SEQ_LEN = 96
_NUM_LAYERS, _NUM_HEADS, _NUM_KV_HEADS, _HEAD_SIZE, _FFN_SIZE = 2, 4, 2, 8, 48
_HIDDEN_SIZE = _NUM_HEADS * _HEAD_SIZE


class TinyModel:
    """Seeded weights and the arithmetic of single layers."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)

        def weight(rows, columns):
            return rng.normal(0.0, 1.3 / np.sqrt(rows), (rows, columns))

        self.embedding = rng.normal(0.0, 1.0, (VOCAB_SIZE, _HIDDEN_SIZE))
        self.layers = [
            {
                "q": weight(_HIDDEN_SIZE, _HIDDEN_SIZE),
                "k": weight(_HIDDEN_SIZE, _NUM_KV_HEADS * _HEAD_SIZE),
                "v": weight(_HIDDEN_SIZE, _NUM_KV_HEADS * _HEAD_SIZE),
                "o": weight(_HIDDEN_SIZE, _HIDDEN_SIZE),
                "gate": weight(_HIDDEN_SIZE, _FFN_SIZE),
                "up": weight(_HIDDEN_SIZE, _FFN_SIZE),
                "down": weight(_FFN_SIZE, _HIDDEN_SIZE),
            }
            for _ in range(_NUM_LAYERS)
        ]
        self.head = weight(_HIDDEN_SIZE, VOCAB_SIZE) * 2.0

    def qkv(self, layer, hidden, positions):
        """Rotated queries and keys, and values. [num_tokens, heads, head_size] each."""
        normed = _rms_norm(hidden)
        q = (normed @ layer["q"]).reshape(-1, _NUM_HEADS, _HEAD_SIZE)
        k = (normed @ layer["k"]).reshape(-1, _NUM_KV_HEADS, _HEAD_SIZE)
        v = (normed @ layer["v"]).reshape(-1, _NUM_KV_HEADS, _HEAD_SIZE)
        return _rotate(q, positions), _rotate(k, positions), v

    def mix(self, layer, hidden, q, keys, values, positions):
        """Attention of ``q`` over all ``keys`` at positions up to its own, then the feed-forward part."""
        group = _NUM_HEADS // _NUM_KV_HEADS
        keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, keys) / np.sqrt(_HEAD_SIZE)
        is_future = np.arange(len(keys))[None, :] > positions[:, None]
        scores = np.where(is_future[None], -np.inf, scores)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        hidden = hidden + np.einsum("hqk,khd->qhd", weights, values).reshape(len(hidden), -1) @ layer["o"]
        normed = _rms_norm(hidden)
        gate = normed @ layer["gate"]
        return hidden + (gate / (1.0 + np.exp(-gate)) * (normed @ layer["up"])) @ layer["down"]

    def logits(self, hidden):
        return _rms_norm(hidden) @ self.head


def reference_logits(model: TinyModel, token_ids: Sequence[int]) -> np.ndarray:
    """Logits after the last of ``token_ids``, by a full pass without any cache. [vocab_size]"""
    positions = np.arange(len(token_ids))
    hidden = model.embedding[list(token_ids)]
    for layer in model.layers:
        q, keys, values = model.qkv(layer, hidden, positions)
        hidden = model.mix(layer, hidden, q, keys, values, positions)
    return model.logits(hidden[-1:])[0]


def reference_greedy(model: TinyModel, prompt_ids: Sequence[int], num_tokens: int) -> tuple[list[int], float]:
    """Greedy completion, and the smallest gap between the best and the second-best logit on the way."""
    token_ids, gap = list(prompt_ids), np.inf
    for _ in range(num_tokens):
        logits = reference_logits(model, token_ids)
        second, best = np.sort(logits)[-2:]
        gap = min(gap, best - second)
        token_ids.append(int(logits.argmax()))
    return token_ids[len(prompt_ids) :], float(gap)


class PagedTinyDecoder:
    """The same model behind the engine's ``Decoder`` seam. ``batches`` records (past, new) tokens per sequence of every step."""

    def __init__(self, model: TinyModel, *, num_blocks: int = 64, block_size: int = 4, max_seq_len: int = MAX_SEQ_LEN) -> None:
        self._model = model
        self.info = DecoderInfo(VOCAB_SIZE, block_size, num_blocks, max_seq_len, kv_bytes_per_token=8)
        shape = (_NUM_LAYERS, num_blocks, block_size, _NUM_KV_HEADS, _HEAD_SIZE)
        self._keys = np.full(shape, np.nan)
        self._values = np.full(shape, np.nan)
        self.batches: list[list[tuple[int, int]]] = []
        self.copies: list[tuple[int, int]] = []

    def forward(self, batch: DecoderBatch) -> DecoderOutput:
        hidden = np.zeros((len(batch.input_ids), _HIDDEN_SIZE))
        begins, block_begins = batch.subsequence_begins, batch.block_indices_begins
        assert begins[-1] == len(batch.input_ids)
        assert block_begins[-1] == len(batch.block_indices)
        self.batches.append([])
        for i, past in enumerate(batch.past_lens.tolist()):
            tokens = slice(begins[i], begins[i + 1])
            blocks = batch.block_indices[block_begins[i] : block_begins[i + 1]]
            hidden[tokens] = self._forward_one(batch.input_ids[tokens], batch.position_ids[tokens], past, blocks)
            self.batches[-1].append((past, int(begins[i + 1] - begins[i])))
        return output_of(self._model.logits(hidden[batch.sample_idx]))

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            self._keys[:, target] = self._keys[:, source]
            self._values[:, target] = self._values[:, source]
        self.copies += pairs

    def _forward_one(self, token_ids, positions, past, blocks):
        block_size, context_len = self.info.block_size, past + len(token_ids)
        assert len(blocks) == -(-context_len // block_size)
        assert positions.tolist() == list(range(past, context_len))
        hidden = self._model.embedding[token_ids]
        for number, layer in enumerate(self._model.layers):
            q, k, v = self._model.qkv(layer, hidden, positions)
            for cache, new in ((self._keys, k), (self._values, v)):
                cache[number, blocks[positions // block_size], positions % block_size] = new
            # [num_blocks, block_size, heads, size] -> the tokens of this sequence in order
            keys = self._keys[number, blocks].reshape(-1, _NUM_KV_HEADS, _HEAD_SIZE)[:context_len]
            values = self._values[number, blocks].reshape(-1, _NUM_KV_HEADS, _HEAD_SIZE)[:context_len]
            hidden = self._model.mix(layer, hidden, q, keys, values, positions)
        return hidden


def output_of(logits: np.ndarray) -> DecoderOutput:
    """A decoder's output computed from logits [num_samples, vocab_size], in the logits' own precision."""
    maximum = logits.max(axis=-1, keepdims=True)
    shifted = logits - maximum
    weights = np.exp(shifted)
    total = weights.sum(axis=-1)
    entropy = np.log(total) - np.where(weights > 0.0, weights * np.maximum(shifted, -1e4), 0.0).sum(axis=-1) / total
    entropy = np.where(np.isnan(total), np.nan, entropy)
    return DecoderOutput(logits, np.log(total) + maximum[:, 0], entropy, logits.argmax(axis=-1))


def _rms_norm(hidden):
    return hidden / np.sqrt((hidden**2).mean(axis=-1, keepdims=True) + 1e-6)


def _rotate(heads, positions):
    """Rotary position embedding of [num_tokens, heads, head_size]."""
    half = _HEAD_SIZE // 2
    angles = positions[:, None] / (100.0 ** (np.arange(half) / half))
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    left, right = heads[..., :half], heads[..., half:]
    return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
