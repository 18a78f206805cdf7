"""How many tokens an answer will still have: quantiles learned online per kind of request."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from tandem.scheduling.quantiles import QuantileSketch

_MAX_KINDS = 128
_MIN_WEIGHT = 16.0
_PRIOR_TOKENS = 128
"""Before anything was learned: a usual chat answer."""


@dataclass(frozen=True, slots=True)
class RequestKind:
    """What is known of a request before it runs. ``task`` is the caller's or the router's tag, empty where there is none.

    ``is_guided``: a grammar ends the answer, so its length says more about the task than ``max_tokens`` does.
    """

    task: str
    max_tokens: int
    is_guided: bool = False


_Key = tuple[str, int, bool]


class LengthPredictor:
    """Predicts from the most special group that has seen enough: (task, max_tokens to the power of two, guided), task, all.

    Bounded: at most 128 groups of one sketch each, the one not used for longest is forgotten first. Not thread-safe.
    """

    def __init__(self) -> None:
        self._sketches: OrderedDict[_Key, QuantileSketch] = OrderedDict()
        self._all = QuantileSketch()

    def learn(self, kind: RequestKind, num_output_tokens: int) -> None:
        """Take in the length of an answer that ended by itself or by its limit; a cancelled one teaches nothing."""
        for key in _keys(kind):
            sketch = self._sketches.get(key)
            if sketch is None:
                sketch = self._sketches[key] = QuantileSketch()
            self._sketches.move_to_end(key)
            sketch.add(num_output_tokens)
        while len(self._sketches) > _MAX_KINDS:
            self._sketches.popitem(last=False)
        self._all.add(num_output_tokens)

    def remaining_tokens(self, kind: RequestKind, num_output_tokens: int = 0, *, q: float = 0.5) -> float:
        """The ``q`` quantile of the tokens still to come after ``num_output_tokens``, from 0 to what ``max_tokens`` leaves."""
        limit = max(kind.max_tokens - num_output_tokens, 0)
        for sketch in (*(self._sketches.get(key) for key in _keys(kind)), self._all):
            if sketch is None or sketch.weight < _MIN_WEIGHT:
                continue
            total = sketch.quantile(q, above=num_output_tokens)
            if total is not None:
                return min(max(total - num_output_tokens, 1.0), limit)
        return float(min(_PRIOR_TOKENS, limit))


def _keys(kind: RequestKind) -> tuple[_Key, _Key]:
    return (kind.task, max(kind.max_tokens - 1, 1).bit_length(), kind.is_guided), (kind.task, 0, kind.is_guided)
