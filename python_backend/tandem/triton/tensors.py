"""Between numpy arrays and Python values, one row of one request at a time. Knows numpy and the protocol, not Triton.

Scalars are read by size and not by rank: a tensor with ``reshape { shape: [] }`` arrives as ``[rows]``, others as ``[rows, 1]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tandem.errors import InvalidRequest

Array = npt.NDArray[Any]
Tensors = Mapping[str, Array]


def count_rows(inputs: Tensors) -> int:
    """The number of rows of a request: the first dimension, which Triton has checked to be the same for all inputs.

    Raises: InvalidRequest when there is none; a request without rows would never get an answer.
    """
    num_rows = next((int(array.shape[0]) for array in inputs.values() if array.ndim), 0)
    if num_rows == 0:
        raise InvalidRequest("batch", "no rows", "send at least one row")
    return num_rows


class RowReader:
    """Reads the tensors of one row; a tensor that is not there reads as None (or as empty)."""

    def __init__(self, inputs: Tensors, row: int) -> None:
        self._inputs = inputs
        self._row = row

    def integer(self, name: str) -> int | None:
        value = self._scalar(name)
        return None if value is None else int(value)

    def number(self, name: str) -> float | None:
        """A float. FP32 carries 0.7 as 0.69999999; the shortest decimal that is the same FP32 is what the caller wrote."""
        value = self._scalar(name)
        return None if value is None else float(str(value))

    def flag(self, name: str) -> bool | None:
        value = self._scalar(name)
        return None if value is None else bool(value)

    def text(self, name: str) -> str | None:
        value = self._scalar(name)
        return None if value is None else _decoded(name, value)

    def integers(self, name: str) -> tuple[int, ...]:
        return tuple(self._flat(name).tolist())

    def numbers(self, name: str) -> tuple[float, ...]:
        return tuple(float(str(value)) for value in self._flat(name))

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(_decoded(name, value) for value in self._flat(name))

    def floats(self, name: str) -> npt.NDArray[np.float32]:
        """A vector as it is, for long ones. [n]"""
        return self._flat(name).astype(np.float32, copy=False)

    def has_data(self, name: str) -> bool:
        """True when the tensor was sent and is not of zero length."""
        array = self._inputs.get(name)
        return array is not None and array.size > 0

    def size(self, name: str) -> int:
        return int(self._flat(name).size)

    def words(self, name: str) -> tuple[tuple[int, ...], ...]:
        """Token words in TensorRT-LLM's layout. [2, n]: row 0 all ids in a line, row 1 ascending end offsets padded with -1.

        Raises: InvalidRequest.
        """
        if not self.has_data(name):
            return ()
        array = self._inputs[name][self._row]
        if array.ndim != 2 or array.shape[0] != 2:
            raise InvalidRequest(name, f"shape {list(array.shape)}", "give [2, n]: the ids in a line, then the end offsets")
        ids, offsets = array[0].tolist(), array[1].tolist()
        ends = offsets[: offsets.index(-1)] if -1 in offsets else offsets
        words, start = [], 0
        for end in ends:
            if not start < end <= len(ids):
                raise InvalidRequest(name, f"end offset {end}", f"end offsets ascend from 1 to at most {len(ids)}")
            words.append(tuple(ids[start:end]))
            start = end
        return tuple(words)

    def _scalar(self, name: str) -> Any:
        array = self._flat(name)
        if array.size == 0:
            return None
        if array.size != 1:
            raise InvalidRequest(name, f"{array.size} values", "give one value per row")
        return array[0]

    def _flat(self, name: str) -> Array:
        array = self._inputs.get(name)
        if array is None or array.size == 0:
            return np.empty(0, np.float32)
        values: Array = np.atleast_1d(array[self._row]).reshape(-1)
        return values


def _decoded(name: str, value: object) -> str:
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(name, repr(value[:40]), f"give valid UTF-8 (byte {error.start} is not)") from None


def int32(value: int, *shape: int) -> Array:
    """One number in the given shape."""
    return np.full(shape, value, np.int32)


def texts(values: Sequence[str]) -> Array:
    """UTF-8 bytes. [len(values), 1]"""
    array = np.empty((len(values), 1), np.object_)
    for row, value in enumerate(values):
        array[row, 0] = value.encode("utf-8")
    return array


def word_list(words: Sequence[Sequence[int]]) -> Array:
    """The inverse of :meth:`RowReader.words` for one row. [1, 2, n]"""
    ids = [token for word in words for token in word]
    ends = np.cumsum([len(word) for word in words]).tolist()
    return np.array([[ids, ends + [-1] * (len(ids) - len(ends))]], np.int32)
