"""Draw one token id from a row of logits, exactly, without sorting the vocabulary.

The distribution: softmax of logits / temperature; then, each over what the one before left and renormalised,

1. min-p: keep tokens at least ``min_p`` times as probable as the most probable one;
2. top-k: keep the ``top_k`` most probable tokens;
3. top-p: keep the smallest set of most probable tokens whose probability reaches ``top_p`` (Holtzman et al., "The Curious Case of
   Neural Text Degeneration", 2020), up to a rounding slack of 1e-6. Everywhere the lower id wins a tie.

One uniform number picks the token by inversion of the cumulative distribution over ascending ids. What makes it cheap: the row is
seen as blocks of 256 logits. The k-th largest block maximum is a lower bound of the k-th largest logit, so top-k looks only at the
logits above it; a plain draw adds up block sums, picks a block, then a token in it; top-p sorts only the weights above a cut that
leaves away less than ``1 - top_p`` of the mass.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tandem.models.decoder import FloatArray

_BLOCK = 256
_FIRST_SHARE = 64.0
_WIDEN = 16.0
_TOP_P_SLACK = 1e-6

Ids = npt.NDArray[np.intp]
Sums = npt.NDArray[np.float64]


class BlockedRow:
    """Scratch memory for one row: values below or equal to 0, the maximum being 0, padded with minus infinity to whole blocks."""

    def __init__(self, vocab_size: int, dtype: np.dtype[np.floating]) -> None:
        num_blocks = -(-vocab_size // _BLOCK)
        self.vocab_size = vocab_size
        self._padded: FloatArray = np.full(num_blocks * _BLOCK, -np.inf, dtype)
        self._values: FloatArray = self._padded[:vocab_size]
        self._blocks: FloatArray = self._padded.reshape(num_blocks, _BLOCK)
        self._weights: FloatArray = np.zeros_like(self._padded)
        self._weight_blocks: FloatArray = self._weights.reshape(num_blocks, _BLOCK)
        self._lowest = float(np.finfo(dtype).min)

    def fill(self, logits: FloatArray, maximum: FloatArray | np.floating) -> None:
        """Take over ``logits - maximum``. ``maximum`` is the finite maximum of ``logits`` [vocab_size]."""
        np.subtract(logits, maximum, out=self._values)

    def scale(self, factor: float) -> None:
        np.multiply(self._values, self._values.dtype.type(factor), out=self._values)

    def values_at(self, ids: Ids) -> Sums:
        values: Sums = self._values[ids].astype(np.float64)
        return values

    def ids_at_least(self, bound: float) -> Ids:
        """Ascending ids whose value is finite and at least ``bound``."""
        return np.flatnonzero(self._padded >= self._padded.dtype.type(max(bound, self._lowest)))

    def kth_bound(self, k: int) -> float:
        """A value that at least ``k`` entries reach, so none of the k largest is below it; -inf where blocks tell nothing."""
        num_blocks = len(self._blocks)
        per_block = -(-k // num_blocks)
        if per_block >= _BLOCK:
            return -math.inf
        if per_block == 1:
            largest = self._blocks.max(axis=1)
        else:
            largest = np.partition(self._blocks, _BLOCK - per_block, axis=1)[:, _BLOCK - per_block :].ravel()
        return float(np.partition(largest, len(largest) - k)[len(largest) - k])

    def top_ids(self, k: int) -> Ids:
        """The ids of the ``k`` largest values (fewer if fewer are finite), largest first, the lower id first in a tie."""
        ids = self.ids_at_least(self.kth_bound(min(k, self.vocab_size)))
        return ids[np.argsort(-self._values[ids], kind="stable")[:k]]

    def exponentiate(self) -> Sums:
        """Fill the weights with ``exp(values)``; returns their sums per block. [num_blocks]"""
        np.exp(self._padded, out=self._weights)
        # einsum adds up short rows twice as fast as sum(axis=1).
        sums: Sums = np.einsum("bw->b", self._weight_blocks).astype(np.float64)
        return sums

    def pick(self, block_sums: Sums, uniform: float) -> int:
        """The id that ``uniform`` falls on, by the weights of the last ``exponentiate``."""
        cumulative = np.cumsum(block_sums)
        block = _pick(cumulative, uniform)
        before = float(cumulative[block - 1]) if block else 0.0
        inner = np.cumsum(self._weight_blocks[block], dtype=np.float64)
        return block * _BLOCK + _pick(inner, (uniform * float(cumulative[-1]) - before) / float(inner[-1]))

    def heaviest(self, mass: float, total: float) -> tuple[Ids, FloatArray]:
        """A superset of the fewest heaviest tokens that weigh ``mass`` of ``total`` together: ascending ids and their weights."""
        # All tokens lighter than rest / vocab_size weigh less than rest together, so the last cut always leaves enough.
        rest, share = total - mass, _FIRST_SHARE
        while True:
            share = min(share, float(self.vocab_size))
            ids = np.flatnonzero(self._weights[: self.vocab_size] >= self._weights.dtype.type(rest / share))
            weights = self._weights[ids]
            if share == self.vocab_size or float(weights.sum(dtype=np.float64)) >= mass:
                return ids, weights
            share *= _WIDEN


class TokenDrawer:
    """Draws tokens with one scratch row. Not thread-safe."""

    def __init__(self, row: BlockedRow) -> None:
        self._row = row

    def draw(
        self, logits: FloatArray, argmax: int, uniform: float, *, temperature: float, top_k: int, top_p: float, min_p: float
    ) -> int | None:
        """The id that ``uniform`` in [0, 1) falls on, or None when the logits have no finite maximum. ``logits`` [vocab_size]"""
        maximum = logits[argmax]
        if not np.isfinite(maximum):
            return None
        row = self._row
        row.fill(logits, maximum)
        is_top_k = 0 < top_k < row.vocab_size
        if is_top_k or min_p > 0.0:
            bound = row.kth_bound(top_k) if is_top_k else -math.inf
            if min_p > 0.0:
                bound = max(bound, temperature * math.log(min_p))
            ids = row.ids_at_least(bound)
            weights = np.exp(row.values_at(ids) / temperature)
            return _draw_filtered(ids, weights, uniform, top_k if is_top_k else len(ids), top_p, None)
        if temperature != 1.0:
            row.scale(1.0 / temperature)
        block_sums = row.exponentiate()
        if top_p == 1.0:
            return row.pick(block_sums, uniform)
        total = float(block_sums.sum())
        ids, heavy = row.heaviest(top_p * total, total)
        return _draw_filtered(ids, heavy, uniform, len(ids), top_p, total)


def _draw_filtered(ids: Ids, weights: FloatArray, uniform: float, top_k: int, top_p: float, total: float | None) -> int:
    """Apply top-k and top-p to candidates (ids ascending), then draw. ``total``: the mass that top-p refers to, None for theirs."""
    if top_k < len(ids) or top_p < 1.0:
        ordered = np.sort(weights)[::-1][:top_k]
        count = len(ordered)
        if top_p < 1.0:
            cumulative = np.cumsum(ordered, dtype=np.float64)
            mass = top_p * (float(cumulative[-1]) if total is None else total) * (1.0 - _TOP_P_SLACK)
            count = min(count, int(np.searchsorted(cumulative, mass, side="left")) + 1)
        lightest = ordered[count - 1]
        is_kept = weights > lightest
        ties = np.flatnonzero(weights == lightest)
        is_kept[ties[: count - int(np.count_nonzero(is_kept))]] = True
        ids, weights = ids[is_kept], weights[is_kept]
    return int(ids[_pick(np.cumsum(weights, dtype=np.float64), uniform)])


def _pick(cumulative: Sums, uniform: float) -> int:
    """The first index whose cumulative weight is above ``uniform`` of the total; rounding never picks an entry of weight 0."""
    total = float(cumulative[-1])
    target = min(max(uniform * total, 0.0), math.nextafter(total, 0.0))
    return int(np.searchsorted(cumulative, target, side="right"))
