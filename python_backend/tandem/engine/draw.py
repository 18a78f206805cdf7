"""Draw one token id from a row of logits, exactly, without sorting the vocabulary.

The distribution: softmax of logits / temperature; then, each over what the one before left and renormalised,

1. min-p: keep tokens at least ``min_p`` times as probable as the most probable one;
2. top-k: keep the ``top_k`` most probable tokens;
3. top-p: keep the smallest set of most probable tokens whose probability reaches ``top_p`` (Holtzman et al., "The Curious Case of
   Neural Text Degeneration", 2020). Everywhere the lower id wins a tie.

One uniform number picks the token by inversion of the cumulative distribution. What makes it cheap: the row is seen as blocks of
256 logits. The k-th largest block maximum is a lower bound of the k-th largest logit, so top-k looks only at the logits above it; a
plain draw adds up block sums, picks a block, then a token in it; top-p sorts only tokens above a weight that provably cuts
less than ``1 - top_p`` of the mass.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tandem.models.decoder import FloatArray

_BLOCK = 256
_TOP_P_FIRST_GUESS = 64.0
_TOP_P_WIDEN = 16.0

Weights = npt.NDArray[np.float64]
Ids = npt.NDArray[np.intp]


class BlockedRow:
    """Scratch memory for one row of logits, padded with minus infinity to whole blocks."""

    def __init__(self, vocab_size: int, dtype: np.dtype[np.floating]) -> None:
        num_blocks = -(-vocab_size // _BLOCK)
        self.vocab_size = vocab_size
        self._padded: FloatArray = np.full(num_blocks * _BLOCK, -np.inf, dtype)
        self.values: FloatArray = self._padded[:vocab_size]  # [vocab_size], written by the owner
        self._blocks: FloatArray = self._padded.reshape(num_blocks, _BLOCK)
        self._weights: FloatArray = np.zeros_like(self._padded)
        self._weight_blocks: FloatArray = self._weights.reshape(num_blocks, _BLOCK)
        self._lowest = float(np.finfo(dtype).min)

    def maximum(self) -> float:
        return float(self._padded.max())

    def ids_at_least(self, bound: float) -> Ids:
        """Ascending ids whose value is finite and at least ``bound``."""
        return np.flatnonzero(self._padded >= self._padded.dtype.type(max(bound, self._lowest)))

    def kth_bound(self, k: int) -> float:
        """A value that at least ``k`` entries reach and that no entry above the k-th largest is below; -inf if k is too large."""
        maxima = self._blocks.max(axis=1)
        if k > len(maxima):
            # More than one of a block: take as many top entries of every block as make k in all.
            per_block = -(-k // len(maxima))
            if per_block >= _BLOCK:
                return -math.inf
            kept = np.partition(self._blocks, _BLOCK - per_block, axis=1)[:, _BLOCK - per_block :].ravel()
            return float(np.partition(kept, len(kept) - k)[len(kept) - k])
        return float(np.partition(maxima, len(maxima) - k)[len(maxima) - k])

    def top_ids(self, k: int) -> Ids:
        """The ids of the ``k`` largest values (fewer if fewer are finite), largest first, the lower id first in a tie."""
        ids = self.ids_at_least(self.kth_bound(min(k, self.vocab_size)))
        order = np.argsort(-self.values[ids], kind="stable")[:k]
        return ids[order]

    def exponentiate(self, maximum: float) -> Weights:
        """Fill the weights ``exp(value - maximum)`` and return their sum per block. [num_blocks]"""
        np.subtract(self._padded, self._padded.dtype.type(maximum), out=self._weights)
        np.exp(self._weights, out=self._weights)
        sums: Weights = self._weight_blocks.sum(axis=1).astype(np.float64)
        return sums

    def weight_block(self, block: int) -> Weights:
        weights: Weights = self._weight_blocks[block].astype(np.float64)
        return weights

    def heaviest(self, mass: float, total: float) -> tuple[Ids, Weights]:
        """A superset of the fewest heaviest tokens that weigh ``mass`` of ``total`` together: ascending ids and their weights."""
        # All tokens lighter than rest / vocab_size together weigh less than rest, so that cut always leaves enough.
        rest = total - mass
        share = _TOP_P_FIRST_GUESS
        while share < self.vocab_size:
            ids = np.flatnonzero(self._weights >= self._weights.dtype.type(rest / share))
            weights = self._weights[ids].astype(np.float64)
            if weights.sum() >= mass:
                return ids, weights
            share *= _TOP_P_WIDEN
        ids = np.flatnonzero(self._weights[: self.vocab_size] >= self._weights.dtype.type(rest / self.vocab_size))
        return ids, self._weights[ids].astype(np.float64)


class TokenDrawer:
    """Owns the scratch row that is scaled by the temperature. Not thread-safe."""

    def __init__(self, vocab_size: int, dtype: np.dtype[np.floating]) -> None:
        self._row = BlockedRow(vocab_size, dtype)

    def draw(self, logits: FloatArray, uniform: float, *, temperature: float, top_k: int, top_p: float, min_p: float) -> int | None:
        """The id that ``uniform`` in [0, 1) falls on, or None when no logit is a finite maximum. ``logits`` [vocab_size]"""
        row = self._row
        np.multiply(logits, logits.dtype.type(1.0 / temperature), out=row.values)
        maximum = row.maximum()
        if not math.isfinite(maximum):
            return None
        is_top_k = 0 < top_k < row.vocab_size
        if is_top_k or min_p > 0.0:
            bound = row.kth_bound(top_k) if is_top_k else -math.inf
            if min_p > 0.0:
                bound = max(bound, maximum + math.log(min_p))
            ids = row.ids_at_least(bound)
            weights = np.exp(row.values[ids].astype(np.float64) - maximum)
            return _draw_sorted(ids, weights, uniform, top_k if is_top_k else len(ids), top_p)
        block_sums = np.cumsum(row.exponentiate(maximum))
        total = float(block_sums[-1])
        if top_p < 1.0:
            ids, weights = row.heaviest(top_p * total, total)
            return _draw_sorted(ids, weights, uniform, len(ids), top_p, total)
        block = _pick(block_sums, uniform * total)
        offset = uniform * total - (float(block_sums[block - 1]) if block else 0.0)
        return block * _BLOCK + _pick(np.cumsum(row.weight_block(block)), offset)


def _draw_sorted(ids: Ids, weights: Weights, uniform: float, top_k: int, top_p: float, total: float | None = None) -> int:
    """Apply top-k and top-p to candidates (ids ascending), then draw. ``total`` is the mass that top-p refers to."""
    if top_k < len(ids) or top_p < 1.0:
        order = np.argsort(-weights, kind="stable")[:top_k]
        ids, weights = ids[order], weights[order]
    cumulative = np.cumsum(weights)
    if top_p < 1.0:
        mass = top_p * (float(cumulative[-1]) if total is None else total)
        cumulative = cumulative[: int(np.searchsorted(cumulative, mass, side="left")) + 1]
    return int(ids[_pick(cumulative, uniform * float(cumulative[-1]))])


def _pick(cumulative: Weights, target: float) -> int:
    """The first index whose cumulative weight is above ``target``; rounding never picks an entry of weight 0."""
    below_total = min(max(target, 0.0), float(np.nextafter(cumulative[-1], 0.0)))
    return int(np.searchsorted(cumulative, below_total, side="right"))
