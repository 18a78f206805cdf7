"""Figures of a router, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tandem.routing.quality import accuracy, apgr, bootstrap_interval, brier, cpt, ece, neighbour_scores, pgr_curve

GAIN = np.array([1.0, 0.0, 1.0, 0.0])


def test_pgr_when_the_best_go_first_then_the_curve_is_steepest():
    # The two prompts that gain go slow first: half of the gap after one, all of it after two.
    scores = np.array([0.1, 0.8, 0.2, 0.9])
    assert pgr_curve(scores, GAIN).tolist() == [0.0, 0.5, 1.0, 1.0, 1.0]
    # Trapezoids: 0.25, 0.75, 1, 1.
    assert apgr(scores, GAIN) == pytest.approx(0.75)
    assert cpt(scores, GAIN, 0.5) == 0.25
    assert cpt(scores, GAIN, 0.8) == 0.5


def test_apgr_when_reversed_then_mirrored():
    scores = np.array([0.1, 0.8, 0.2, 0.9])
    assert apgr(1.0 - scores, GAIN) == pytest.approx(0.25)


def test_apgr_when_slow_is_harmful_somewhere_then_above_one_is_possible():
    # Strong alone: +1. Sending only the first two recovers 2 of 1.
    gain = np.array([1.0, 1.0, -1.0])
    assert pgr_curve(np.array([0.1, 0.2, 0.9]), gain).tolist() == [0.0, 1.0, 2.0, 1.0]


def test_pgr_when_there_is_no_gap_then_refused():
    with pytest.raises(ValueError, match="no better"):
        pgr_curve(np.array([0.1, 0.2]), np.array([1.0, -1.0]))


def test_calibration_figures_when_worked_by_hand():
    scores, fast = np.array([0.1, 0.2, 0.9, 0.95]), np.array([0.0, 1.0, 1.0, 1.0])
    assert brier(scores, fast) == pytest.approx((0.01 + 0.64 + 0.01 + 0.0025) / 4)
    # Bins of width 0.5: {0.1, 0.2} mean 0.15 against 0.5; {0.9, 0.95} mean 0.925 against 1.
    assert ece(scores, fast, num_bins=2) == pytest.approx(0.5 * 0.35 + 0.5 * 0.075)
    assert accuracy(scores, fast, 0.5) == 0.75


def test_bootstrap_when_repeated_then_equal_and_around_the_mean():
    values = np.arange(100.0)
    first = bootstrap_interval(lambda rows: float(values[rows].mean()), 100)
    assert first == bootstrap_interval(lambda rows: float(values[rows].mean()), 100)
    assert first[0] < 49.5 < first[1]


def test_neighbours_when_near_then_their_mean():
    vectors = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    assert neighbour_scores(vectors, np.array([1.0, 0.0, 0.0]), np.array([[1.0, 0.05]]), num_neighbours=2).tolist() == [0.5]
