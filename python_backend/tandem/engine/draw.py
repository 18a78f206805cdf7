"""Draw one token id from a row of logits, exactly, without sorting the vocabulary.

The distribution: softmax of logits / temperature; then, each over what the one before left and renormalised,

1. min-p: keep tokens at least ``min_p`` times as probable as the most probable one;
2. top-k: keep the ``top_k`` most probable tokens;
3. top-p: keep the smallest set of most probable tokens whose probability reaches ``top_p`` (Holtzman et al., "The Curious Case of
   Neural Text Degeneration", 2020), up to a rounding slack of 1e-6. Everywhere the lower id wins a tie.

One uniform number picks the token by inversion of the cumulative distribution over ascending ids. What makes it cheap: the row is
seen as blocks of 256 logits. The k-th largest block maximum is a lower bound of the k-th largest logit, so top-k looks only at the
logits above it; a plain draw adds up block sums, picks a block, then a token in it; top-p sorts a few heavy tokens, or, when
they do not reach ``top_p``, bisects the weight at which its set ends.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tandem.models.decoder import FloatArray

_BLOCK = 256
_FEW = 64.0
_SORTED_AT_ONCE = 1024
_TOP_P_SLACK = 1e-6

Ids = npt.NDArray[np.intp]
Sums = npt.NDArray[np.float64]
FloatScalar = np.floating[Any]


class BlockedRow:
    """Scratch memory for one row: values below or equal to 0, the maximum being 0, padded with minus infinity to whole blocks."""

    def __init__(self, vocab_size: int, dtype: np.dtype[np.floating[Any]]) -> None:
        num_blocks = -(-vocab_size // _BLOCK)
        self.vocab_size = vocab_size
        self._padded: FloatArray = np.full(num_blocks * _BLOCK, -np.inf, dtype)
        self._values: FloatArray = self._padded[:vocab_size]
        self._blocks: FloatArray = self._padded.reshape(num_blocks, _BLOCK)
        self._weights: FloatArray = np.zeros_like(self._padded)
        self._weight_blocks: FloatArray = self._weights.reshape(num_blocks, _BLOCK)
        self._masked: FloatArray = np.zeros_like(self._padded)
        self._masked_blocks: FloatArray = self._masked.reshape(num_blocks, _BLOCK)
        self._lowest = float(np.finfo(dtype).min)

    def fill(self, logits: FloatArray, maximum: FloatArray | np.floating[Any]) -> None:
        """Take over ``logits - maximum``. ``maximum`` is the finite maximum of ``logits`` [vocab_size]."""
        np.subtract(logits, maximum, out=self._values)

    def scale(self, factor: float) -> None:
        np.multiply(self._values, self._values.dtype.type(factor), out=self._values)

    def values_at(self, ids: Ids) -> Sums:
        values: Sums = self._values[ids].astype(np.float64)
        return values

    def ids_at_least(self, bound: float) -> Ids:
        """Ascending ids whose value is finite and at least ``bound``."""
        ids: Ids = np.flatnonzero(self._padded >= self._padded.dtype.type(max(bound, self._lowest)))
        return ids

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
        largest: Ids = ids[np.argsort(-self._values[ids], kind="stable")[:k]]
        return largest

    def exponentiate(self) -> Sums:
        """Fill the weights with ``exp(values)``; returns their sums per block. [num_blocks]"""
        np.exp(self._padded, out=self._weights)
        return _block_sums(self._weight_blocks)

    def pick(self, block_sums: Sums, uniform: float) -> int:
        """The id that ``uniform`` falls on, by the weights of the last ``exponentiate``."""
        cumulative = np.cumsum(block_sums)
        block = _pick(cumulative, uniform)
        before = float(cumulative[block - 1]) if block else 0.0
        inner = np.cumsum(self._weight_blocks[block], dtype=np.float64)
        return block * _BLOCK + _pick(inner, (uniform * float(cumulative[-1]) - before) / float(inner[-1]))

    def heavy_ids(self, mass: float, total: float) -> Ids | None:
        """Ascending ids of a few heavy tokens that weigh at least ``mass`` of ``total`` together; None when it takes many."""
        ids = np.flatnonzero(self._weights >= self._weights.dtype.type((total - mass) / _FEW))
        return ids if float(self._weights[ids].sum(dtype=np.float64)) >= mass else None

    def weights_at(self, ids: Ids) -> FloatArray:
        return self._weights[ids]

    def cut_to_nucleus(self, mass: float, total: float) -> Sums:
        """Set all weights but the fewest heaviest that reach ``mass`` of ``total`` to 0; returns the sums per block."""
        weights = self._weights
        low, high, mass_high = self._bracket_cut(mass, total)
        between = np.sort(weights[(weights >= low) & (weights < high)])[::-1]
        count = min(len(between), int(np.searchsorted(mass_high + np.cumsum(between, dtype=np.float64), mass)) + 1)
        lightest = between[count - 1]
        num_ties_kept = count - int(np.count_nonzero(between > lightest))
        surplus = np.flatnonzero(weights == lightest)[num_ties_kept:]
        np.multiply(weights, weights >= lightest, out=weights)
        weights[surplus] = 0.0
        return _block_sums(self._weight_blocks)

    def _bracket_cut(self, mass: float, total: float) -> tuple[FloatScalar, FloatScalar, float]:
        """Weights ``low`` and ``high`` around the end of the nucleus, few tokens apart, and the mass from ``high`` on.

        Bisection on a log scale: what weighs ``low`` or more reaches ``mass``, what weighs ``high`` or more does not.
        """
        weights, dtype = self._weights, self._weights.dtype.type
        # All tokens lighter than rest / vocab_size weigh less than rest together.
        low, high = dtype((total - mass) / self.vocab_size), dtype(2.0)
        num_low, num_high, mass_high = int(np.count_nonzero(weights >= low)), 0, 0.0
        while num_low - num_high > _SORTED_AT_ONCE:
            middle = np.sqrt(low * high)
            if not low < middle < high:
                break
            is_heavy = weights >= middle
            np.multiply(weights, is_heavy, out=self._masked)  # faster than an indexed sum
            mass_middle = float(_block_sums(self._masked_blocks).sum())
            if mass_middle >= mass:
                low, num_low = middle, int(np.count_nonzero(is_heavy))
            else:
                high, num_high, mass_high = middle, int(np.count_nonzero(is_heavy)), mass_middle
        return low, high, mass_high


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
            return _draw_candidates(ids, weights, uniform, top_k if is_top_k else len(ids), top_p, None)
        if temperature != 1.0:
            row.scale(1.0 / temperature)
        block_sums = row.exponentiate()
        if top_p == 1.0:
            return row.pick(block_sums, uniform)
        total = float(block_sums.sum())
        mass = _nucleus_mass(top_p, total)
        heavy = row.heavy_ids(mass, total)
        if heavy is None:
            return row.pick(row.cut_to_nucleus(mass, total), uniform)
        return _draw_candidates(heavy, row.weights_at(heavy), uniform, len(heavy), top_p, total)


def _draw_candidates(ids: Ids, weights: FloatArray, uniform: float, top_k: int, top_p: float, total: float | None) -> int:
    """Apply top-k and top-p to candidates (ids ascending), then draw. ``total``: the mass that top-p refers to, None for theirs."""
    if top_k < len(ids) or top_p < 1.0:
        ordered = np.sort(weights)[::-1][:top_k]
        count = len(ordered)
        if top_p < 1.0:
            cumulative = np.cumsum(ordered, dtype=np.float64)
            mass = _nucleus_mass(top_p, float(cumulative[-1]) if total is None else total)
            count = min(count, int(np.searchsorted(cumulative, mass)) + 1)
        lightest = ordered[count - 1]
        is_kept = weights > lightest
        ties = np.flatnonzero(weights == lightest)
        is_kept[ties[: count - int(np.count_nonzero(is_kept))]] = True
        ids, weights = ids[is_kept], weights[is_kept]
    return int(ids[_pick(np.cumsum(weights, dtype=np.float64), uniform)])


def _nucleus_mass(top_p: float, total: float) -> float:
    return top_p * total * (1.0 - _TOP_P_SLACK)


def _pick(cumulative: Sums, uniform: float) -> int:
    """The first index whose cumulative weight is above ``uniform`` of the total; rounding never picks an entry of weight 0."""
    total = float(cumulative[-1])
    target = min(max(uniform * total, 0.0), math.nextafter(total, 0.0))
    return int(np.searchsorted(cumulative, target, side="right"))


def _block_sums(blocks: FloatArray) -> Sums:
    # einsum adds up short rows twice as fast as sum(axis=1).
    sums: Sums = np.einsum("bw->b", blocks).astype(np.float64)
    return sums
