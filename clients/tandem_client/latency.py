"""Latency figures of one answer from its time stamps; pure arithmetic, one definition for every tool of this repository.

TTFT: send to first non-empty content. E2E: send to the end of the answer. TPOT = (E2E - TTFT) / (output tokens - 1), undefined
for fewer than two tokens. ITL: the single gaps between contents. Other tools define some of these differently.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds. ``ttft_s`` is None when there was no text, ``tpot_s`` when there were fewer than two tokens."""

    e2e_s: float
    ttft_s: float | None
    tpot_s: float | None
    itl_s: tuple[float, ...]


def measure(*, sent_s: float, content_s: Sequence[float], end_s: float, num_output_tokens: int) -> Latency:
    """Figures from one clock: ``content_s`` are the arrival times of non-empty contents, in order.

    Role events and empty deltas are no content: leave their times out.
    """
    ttft_s = content_s[0] - sent_s if content_s else None
    e2e_s = end_s - sent_s
    tpot_s = None if ttft_s is None or num_output_tokens < 2 else (e2e_s - ttft_s) / (num_output_tokens - 1)
    gaps = tuple(later - earlier for earlier, later in pairwise(content_s))
    return Latency(e2e_s=e2e_s, ttft_s=ttft_s, tpot_s=tpot_s, itl_s=gaps)


def percentile(samples: Sequence[float], percent: float) -> float:
    """Linear interpolation between the two nearest ranks; never above the largest sample. Raises: ValueError without samples."""
    if not samples:
        raise ValueError("a percentile needs at least one sample")
    if not 0 <= percent <= 100:
        raise ValueError(f"percent: got {percent}; give a number from 0 to 100")
    ordered = sorted(samples)
    rank = (len(ordered) - 1) * percent / 100
    low, high = math.floor(rank), math.ceil(rank)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)
