"""Latency figures from hand-written time stamps."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_client.latency import measure, percentile


def test_figures_when_times_are_known_then_follow_the_definitions() -> None:
    latency = measure(sent_s=10.0, content_s=[10.2, 10.22, 10.25], end_s=10.3, num_output_tokens=5)
    assert latency.ttft_s == pytest.approx(0.2)
    assert latency.e2e_s == pytest.approx(0.3)
    assert latency.tpot_s == pytest.approx(0.1 / 4)
    assert latency.itl_s == pytest.approx((0.02, 0.03))


@pytest.mark.parametrize(("content", "tokens"), [([1.0], 1), ([], 0), ([], 3)])
def test_tpot_when_fewer_than_two_tokens_or_no_text_then_undefined(content: list[float], tokens: int) -> None:
    latency = measure(sent_s=0.0, content_s=content, end_s=2.0, num_output_tokens=tokens)
    assert latency.tpot_s is None
    assert latency.itl_s == ()
    assert latency.ttft_s == (content[0] if content else None)


@pytest.mark.parametrize(
    ("samples", "percent", "expected"),
    [
        ([575], 50, 575),
        ([575], 99, 575),
        (list(range(1, 54)), 50, 27),
        ([10, 10, 10, 1000], 50, 10),
        ([10, 10, 10, 1000], 100, 1000),
    ],
)
def test_percentile_when_samples_are_few_then_known_value(samples: list[float], percent: float, expected: float) -> None:
    assert percentile(samples, percent) == expected


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_when_compared_then_ordered_and_within_the_samples(samples: list[float]) -> None:
    values = [percentile(samples, percent) for percent in (0, 50, 95, 99, 100)]
    assert values[0] == min(samples)
    assert values[-1] == max(samples)
    assert all(low <= high or low == pytest.approx(high) for low, high in pairwise(values))


@pytest.mark.parametrize(("samples", "percent"), [([], 50), ([1.0], 101)])
def test_percentile_when_it_has_no_meaning_then_value_error(samples: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match=r"sample|percent"):
        percentile(samples, percent)
