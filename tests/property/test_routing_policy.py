"""Whatever the stages say and whatever the load: one answer, a monotone threshold, a faithful replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tandem.routing.decision import Outcome, StageReport
from tandem.routing.explain import DecisionRecord, replay
from tandem.routing.load import EngineLoad, Slo
from tandem.routing.policy import Decided, Evidence, PolicyTerms, SessionHint, settle
from tandem.types import Path
from tests.routing_factories import PATHS, features_of, terms_of

PROBABILITIES = st.floats(0, 1, allow_nan=False)
ENGINES = st.sampled_from(sorted(PATHS))
LOADS = st.dictionaries(
    ENGINES,
    st.builds(EngineLoad, st.integers(0, 50), st.integers(0, 16), st.floats(0, 3), st.floats(0, 5000), st.floats(0, 500)),
)
LIMITS = st.none() | st.floats(1, 4000)


@st.composite
def reports(draw: Any) -> tuple[StageReport, ...]:
    found = []
    for stage in ("rules", "classifier", "scorer"):
        outcome = draw(st.sampled_from(list(Outcome)))
        scored = outcome in (Outcome.SURE, Outcome.UNSURE)
        score = draw(PROBABILITIES) if scored else None
        engine = draw(st.none() | ENGINES) if scored else None
        found.append(StageReport(stage, outcome, draw(st.floats(0, 100)), score, "r", "d", engine, draw(st.none() | PROBABILITIES)))
        if outcome in (Outcome.SURE, Outcome.INVALID):
            break
    return tuple(found)


@st.composite
def evidences(draw: Any) -> Evidence:
    return Evidence(
        path=draw(st.sampled_from(["auto", "auto", "auto", "fast", "slow"])),
        threshold=draw(st.none() | PROBABILITIES),
        is_tool_result=draw(st.booleans()),
        num_turns=draw(st.integers(0, 5)),
        slo=Slo(draw(LIMITS), draw(LIMITS)),
        reports=draw(reports()),
        load=draw(LOADS),
        session=draw(st.none() | st.builds(SessionHint, ENGINES, st.integers(0, 8000))),
    )


def with_thresholds(evidence: Evidence, terms: PolicyTerms, threshold: float) -> list[tuple[Evidence, PolicyTerms]]:
    """The three places where a threshold may stand, each set to the value."""

    own = replace(evidence, threshold=threshold)
    of_stage = replace(evidence, threshold=None, reports=tuple(replace(r, threshold=threshold) for r in evidence.reports))
    of_file = replace(evidence, threshold=None, reports=tuple(replace(r, threshold=None) for r in evidence.reports))
    return [(own, terms), (of_stage, terms), (of_file, replace(terms, threshold=threshold))]


@given(evidences(), PROBABILITIES, PROBABILITIES, st.floats(0, 0.3))
def test_raising_the_threshold_never_sends_more_to_the_slow_path(evidence: Evidence, one: float, two: float, margin: float) -> None:
    low, high = sorted((one, two))
    terms = terms_of(margin=margin)
    for strict, loose in zip(with_thresholds(evidence, terms, low), with_thresholds(evidence, terms, high), strict=True):
        if settle(*strict).path is Path.FAST:
            assert settle(*loose).path is Path.FAST


@given(evidences())
def test_there_is_always_one_answer_and_its_replay_is_the_same(evidence: Evidence) -> None:
    terms = terms_of()
    decision = settle(evidence, terms)
    assert terms.paths[decision.engine] is decision.path
    if evidence.path != "auto":
        assert decision.path.value == evidence.path
    record = DecisionRecord.of(Decided(decision, evidence), features_of(), terms, "")
    assert replay(DecisionRecord.from_json(record.to_json())) == decision


@given(evidences())
def test_invalid_score_of_a_request_without_a_path_goes_slow(evidence: Evidence) -> None:
    is_open = evidence.path == "auto" and not (evidence.is_tool_result and evidence.session is not None)
    if is_open and any(report.outcome is Outcome.INVALID for report in evidence.reports):
        assert settle(evidence, terms_of()).path is Path.SLOW
