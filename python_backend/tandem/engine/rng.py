"""Random numbers that depend on nothing but seed, sequence and position.

Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) is counter-based: number ``position`` of the stream
of a key can be computed without the ones before it. So a token does not depend on batch neighbours, on preemption or on streaming.
"""

from __future__ import annotations

import secrets

import numpy as np

_CHUNK = 64  # numbers made at once; a multiple of the 4 that Philox makes per counter value
_NUMBERS_PER_COUNT = 4


def fresh_seed() -> int:
    """A seed for a request that gives none."""
    return secrets.randbits(64)


class TokenRandom:
    """One uniform number in [0, 1) per token position of one sequence."""

    __slots__ = ("_chunk", "_key", "_numbers")

    def __init__(self, seed: int, sequence_index: int) -> None:
        self._key = np.array([seed, sequence_index], np.uint64)
        self._chunk = -1
        self._numbers: list[float] = []

    def uniform(self, position: int) -> float:
        """The number of completion position ``position``, with 53 random bits; the same at every call."""
        chunk, offset = divmod(position, _CHUNK)
        if chunk != self._chunk:
            counter = np.array([chunk * (_CHUNK // _NUMBERS_PER_COUNT), 0, 0, 0], np.uint64)
            raw = np.random.Philox(key=self._key, counter=counter).random_raw(_CHUNK)
            self._numbers = ((raw >> np.uint64(11)) * 2.0**-53).tolist()
            self._chunk = chunk
        return self._numbers[offset]
