"""Quantiles, length prediction, the step-time model, who steps back, and the hindsight bound."""

import random

import pytest

from loadtest.late_jobs import least_target_s, num_late
from tandem.scheduling.deferral import DeferralRule
from tandem.scheduling.length import LengthPredictor, RequestKind
from tandem.scheduling.quantiles import QuantileSketch
from tandem.scheduling.step_time import StepTimeModel
from tandem.scheduling.wait_bound import WaitBound


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9, 0.99])
def test_quantile_when_values_are_spread_then_within_nine_percent(q):
    rng = random.Random(3)
    values = [rng.lognormvariate(5.0, 1.0) for _ in range(900)]
    sketch = QuantileSketch()
    for value in values:
        sketch.add(value)
    assert sketch.quantile(q) == pytest.approx(sorted(values)[int(q * 900)], rel=0.1)


def test_quantile_when_conditioned_then_counts_only_larger_values():
    sketch = QuantileSketch()
    for value in [10] * 90 + [1000] * 10:
        sketch.add(value)
    assert sketch.quantile(0.5) == pytest.approx(10, rel=0.1)
    assert sketch.quantile(0.5, above=20) == pytest.approx(1000, rel=0.1)
    assert sketch.quantile(0.5, above=2000) is None


def test_quantile_when_traffic_changes_then_follows():
    sketch = QuantileSketch()
    for value in [10] * 5000 + [1000] * 3000:
        sketch.add(value)
    assert sketch.quantile(0.2) == pytest.approx(1000, rel=0.1)
    assert sketch.weight < 1024


def test_quantile_when_nothing_was_seen_then_none():
    assert QuantileSketch().quantile(0.5) is None


def test_prediction_when_nothing_was_learned_then_prior_within_max_tokens():
    lengths = LengthPredictor()
    assert lengths.remaining_tokens(RequestKind("", 4096)) == 128
    assert lengths.remaining_tokens(RequestKind("", 20), 5) == 15
    assert lengths.remaining_tokens(RequestKind("", 20), 20) == 0


def test_prediction_when_task_and_limit_tell_apart_then_each_has_its_own():
    lengths = LengthPredictor()
    for _ in range(40):
        lengths.learn(RequestKind("extraction", 512), 12)
        lengths.learn(RequestKind("chat", 512), 300)
        lengths.learn(RequestKind("chat", 64), 64)
    assert lengths.remaining_tokens(RequestKind("extraction", 512)) == pytest.approx(12, rel=0.1)
    assert lengths.remaining_tokens(RequestKind("chat", 500)) == pytest.approx(300, rel=0.1)
    assert lengths.remaining_tokens(RequestKind("chat", 64)) == pytest.approx(64, rel=0.1)
    # A limit that was never seen: the task decides. A task that was never seen: everything does.
    assert lengths.remaining_tokens(RequestKind("extraction", 5)) == 5
    assert 12 <= lengths.remaining_tokens(RequestKind("summary", 512)) <= 300


def test_prediction_when_answer_is_longer_than_most_then_of_those_that_are_too():
    lengths = LengthPredictor()
    for length in [10] * 50 + [200] * 50:
        lengths.learn(RequestKind("", 512), length)
    assert lengths.remaining_tokens(RequestKind("", 512), 50) == pytest.approx(150, rel=0.2)
    assert lengths.remaining_tokens(RequestKind("", 512), 400) == 112  # longer than any seen: the prior, cut by the limit


def test_predictor_when_kinds_are_many_then_memory_is_bounded():
    lengths = LengthPredictor()
    for number in range(1000):
        lengths.learn(RequestKind(f"task{number}", 512), 10)
    assert len(lengths._sketches) == 128


def test_step_time_when_steps_are_observed_then_coefficients_are_found():
    steps, rng = StepTimeModel(), random.Random(0)
    for _ in range(600):
        num_prefill, num_decodes = rng.randrange(0, 40), rng.randrange(0, 17)
        steps.observe(num_prefill, num_decodes, (9.0 + 3.5 * num_decodes + 1.25 * num_prefill) * rng.uniform(0.98, 1.02))
    base, decode, prefill = steps.coefficients_ms
    assert base == pytest.approx(9.0, abs=1.0)
    assert decode == pytest.approx(3.5, rel=0.05)
    assert prefill == pytest.approx(1.25, rel=0.05)
    assert steps.step_ms(10, 2) == pytest.approx(28.5, rel=0.05)
    assert steps.prefill_ms(100, 50) == pytest.approx(143.0, rel=0.05)


def test_step_time_when_all_steps_are_alike_then_stays_finite():
    steps = StepTimeModel()
    for _ in range(20000):
        steps.observe(0, 4, 20.0)
    assert steps.step_ms(0, 4) == pytest.approx(20.0)
    for _ in range(200):
        steps.observe(32, 4, 70.0)
    assert steps.step_ms(32, 4) == pytest.approx(70.0, rel=0.05)


def deferred_of(works, *, target_work, other_sizes=None):
    """Which of requests that come at once step back."""
    bound, rule = WaitBound(3.0), DeferralRule()
    tickets = [bound.arrive(number, work) for number, work in enumerate(works)]
    for ticket, other_size in zip(tickets, other_sizes or [0] * len(works), strict=True):
        rule.arrive(ticket, target_work, other_size=other_size)
    return [ticket.serial for ticket in tickets if ticket.is_deferred], rule


def test_deferral_when_one_would_be_late_then_the_largest_steps_back():
    assert deferred_of([10, 50, 20, 15], target_work=100)[0] == []
    assert deferred_of([10, 50, 20, 21], target_work=100)[0] == [1]
    assert deferred_of([10, 50, 20, 15], target_work=80)[0] == [1]
    assert deferred_of([10, 20, 60], target_work=80)[0] == [2]


def test_deferral_when_answers_differ_then_they_count_towards_the_largest():
    assert deferred_of([40, 50, 20], target_work=100, other_sizes=[0, 0, 400])[0] == [2]


def test_deferral_when_too_many_step_back_then_the_target_gives_way():
    deferred, rule = deferred_of([10] * 1000, target_work=1)
    assert 200 < len(deferred) < 800
    assert rule.target_factor == pytest.approx(2 ** ((len(deferred) - 10) / 70), rel=0.2)


def test_deferral_when_a_part_was_served_then_only_the_rest_counts():
    bound, rule = WaitBound(3.0), DeferralRule()
    first, second, third = (bound.arrive(number, work) for number, work in enumerate((50, 30, 30)))
    for ticket in (first, second):
        rule.arrive(ticket, 100)
    rule.serve(first, 40)
    bound.serve(first, 40)
    rule.arrive(third, 69)
    assert [ticket.is_deferred for ticket in (first, second, third)] == [False, True, False]


def test_late_jobs_when_one_long_job_is_in_the_way_then_only_it_is_late():
    assert num_late([0, 1, 2, 3], [100, 1, 1, 1], 5) == 1
    assert num_late([0, 1, 2, 3], [1, 1, 1, 1], 1) == 0
    assert num_late([0, 0, 0], [2, 2, 2], 4) == 1
    assert num_late([0, 50, 51], [5, 4, 4], 4) == 2  # the first is too long by itself, one of the others waits


def test_least_target_when_a_share_may_be_late_then_it_is_that_of_the_rest():
    at_s, work_s = [float(number) for number in range(100)], [0.5] * 100
    work_s[10] = 40.0
    assert least_target_s(at_s, work_s, 0.01) == pytest.approx(0.5, abs=1e-3)
    assert least_target_s(at_s, work_s, 0.0) > 39.0
