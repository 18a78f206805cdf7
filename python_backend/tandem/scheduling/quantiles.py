"""Quantiles of a stream in fixed memory."""

from __future__ import annotations

import math

_BUCKETS_PER_DOUBLING = 4
_NUM_BUCKETS = 20 * _BUCKETS_PER_DOUBLING + 1  # 1 to 2**20
_MAX_WEIGHT = 1024.0


class QuantileSketch:
    """Counts in buckets that grow by 2**(1/4), so an answer is within 9 % of a value that was seen.

    The idea is that of DDSketch (Masson, Rim, Lee 2019): relative error from logarithmic buckets. When the weight reaches 1,024
    all counts are halved, so that the last few thousand values decide and a change of traffic is followed.
    """

    __slots__ = ("_counts", "_weight")

    def __init__(self) -> None:
        self._counts = [0.0] * _NUM_BUCKETS
        self._weight = 0.0

    @property
    def weight(self) -> float:
        """Number of values seen, less what was forgotten."""
        return self._weight

    def add(self, value: float) -> None:
        """Count one value; values below 1 count as 1, values above 2**20 as 2**20."""
        self._counts[_bucket_of(value)] += 1.0
        self._weight += 1.0
        if self._weight >= _MAX_WEIGHT:
            self._counts = [count / 2 for count in self._counts]
            self._weight /= 2

    def quantile(self, q: float, *, above: float = 0.0) -> float | None:
        """The ``q`` quantile (0 to 1) of the values greater than ``above``; None when no such value was seen."""
        assert 0.0 <= q <= 1.0, q
        first = 0 if above < 1.0 else _bucket_of(above) + 1
        weight = sum(self._counts[first:])
        if weight <= 0.0:
            return None
        wanted, seen = q * weight, 0.0
        last = first
        for bucket in range(first, _NUM_BUCKETS):
            if self._counts[bucket] == 0.0:
                continue
            last = bucket
            seen += self._counts[bucket]
            if seen >= wanted:
                break
        return _value_of(last)


def _bucket_of(value: float) -> int:
    if value <= 1.0:
        return 0
    return min(round(math.log2(value) * _BUCKETS_PER_DOUBLING), _NUM_BUCKETS - 1)


def _value_of(bucket: int) -> float:
    return float(2.0 ** (bucket / _BUCKETS_PER_DOUBLING))
