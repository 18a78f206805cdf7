"""Arrays to values and back, row by row."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.errors import InvalidRequest
from tandem.triton.tensors import RowReader, count_rows, word_list


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1)])
def test_scalar_when_of_any_rank_then_read(shape):
    inputs = {"i": np.full(shape, 7, np.int32), "b": np.full(shape, True), "t": np.full(shape, b"x", object)}
    row = RowReader(inputs, 0)
    assert (row.integer("i"), row.flag("b"), row.text("t")) == (7, True, "x")


def test_scalar_when_absent_or_empty_then_none():
    row = RowReader({"empty": np.zeros((1, 0), np.int32)}, 0)
    assert row.integer("empty") is row.integer("absent") is row.flag("absent") is row.text("absent") is row.number("absent") is None
    assert not row.has_data("empty")
    assert row.integers("absent") == ()


def test_scalar_when_several_values_then_refused_by_name():
    with pytest.raises(InvalidRequest, match="seed"):
        RowReader({"seed": np.ones((1, 2), np.int32)}, 0).integer("seed")


def test_float_when_fp32_then_the_decimal_that_was_written():
    assert RowReader({"t": np.array([[0.7]], np.float32)}, 0).number("t") == 0.7
    assert RowReader({"t": np.array([[0.1, 1e-9]], np.float32)}, 0).numbers("t") == (0.1, 1e-9)
    assert np.isnan(RowReader({"t": np.array([np.nan], np.float32)}, 0).number("t"))


def test_integer_when_uint64_then_exact():
    assert RowReader({"seed": np.array([[2**64 - 1]], np.uint64)}, 0).integer("seed") == 2**64 - 1


def test_rows_when_several_then_each_its_own():
    inputs = {"ids": np.array([[1, 2], [3, 4]], np.int32), "n": np.array([5, 6], np.int32)}
    assert count_rows(inputs) == 2
    assert [(RowReader(inputs, row).integers("ids"), RowReader(inputs, row).integer("n")) for row in (0, 1)] == [
        ((1, 2), 5),
        ((3, 4), 6),
    ]


@pytest.mark.parametrize("inputs", [{}, {"ids": np.zeros((0, 3), np.int32)}])
def test_rows_when_none_then_refused(inputs):
    with pytest.raises(InvalidRequest, match="no rows"):
        count_rows(inputs)


def test_text_when_not_utf8_then_names_tensor_and_byte():
    with pytest.raises(InvalidRequest, match=r"stop_words.*byte 1"):
        RowReader({"stop_words": np.array([[b"a\xff"]], object)}, 0).texts("stop_words")


@pytest.mark.parametrize("words", [((1,),), ((1, 2, 3), (4,)), ((5,), (6,), (7, 8))])
def test_words_when_encoded_then_read_back(words):
    array = word_list(words)
    assert array.shape[:2] == (1, 2)
    assert RowReader({"w": array}, 0).words("w") == words


def test_words_when_empty_then_none():
    assert RowReader({"w": np.zeros((1, 2, 0), np.int32)}, 0).words("w") == ()
    assert RowReader({"w": np.array([[[0], [-1]]], np.int32)}, 0).words("w") == ()


@pytest.mark.parametrize("offsets", [[0, -1, -1], [2, 1, -1], [4, -1, -1], [1, 1, -1], [-2, -1, -1]])
def test_words_when_offsets_do_not_ascend_then_refused(offsets):
    with pytest.raises(InvalidRequest, match="bad_words_list"):
        RowReader({"bad_words_list": np.array([[[7, 8, 9], offsets]], np.int32)}, 0).words("bad_words_list")
