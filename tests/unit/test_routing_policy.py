"""From evidence to a decision: thresholds, load, sessions; and the record that replays it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tandem.errors import InvalidRequest
from tandem.routing.decision import RouteDecision, goes_slow, win_rate
from tandem.routing.explain import DecisionRecord, explain, replay
from tandem.routing.load import EngineLoad, LoadSnapshot, Slo
from tandem.routing.policy import SessionHint
from tandem.routing.stages import Band
from tests.routing_factories import ALWAYS, NEVER, ScriptedStage, features_of, in_thread, policy_of


def decide(
    score: float = 0.9,
    *,
    unsure: Band = NEVER,
    load: LoadSnapshot | None = None,
    session: SessionHint | None = None,
    threshold_of_stage: float | None = None,
    **given: Any,
) -> RouteDecision:
    """``terms_*`` are fields of the terms, the rest are features."""
    terms = {name.removeprefix("terms_"): value for name, value in given.items() if name.startswith("terms_")}
    fields = {name: value for name, value in given.items() if not name.startswith("terms_")}
    stage = in_thread(ScriptedStage("judge", score), unsure, threshold_of_stage)
    return policy_of(stage, **terms).decide(features_of(**fields), load, session).decision


def loads(**ttft_ms: float) -> dict[str, EngineLoad]:
    return {name: EngineLoad(0, 0, 0.0, ms, 20.0) for name, ms in ttft_ms.items()}


@pytest.mark.parametrize(
    ("score", "threshold", "path"),
    [
        (0.58, 0.42, "slow"),  # equal: the stronger model answers
        (0.58, 0.420001, "fast"),
        (0.58, 0.419999, "slow"),
        (0.1 + 0.2, 0.7, "slow"),  # equal but for the noise of floats
        (1.0, 0.0, "slow"),
        (0.0, 1.0, "slow"),
        (1.0, 0.000001, "fast"),
        (0.000001, 1.0, "fast"),
    ],
)
def test_win_rate_equal_to_the_threshold_goes_slow(score: float, threshold: float, path: str) -> None:
    assert goes_slow(score, threshold) is (path == "slow")
    assert decide(score, threshold=threshold).path.value == path
    assert decide(score, terms_threshold=threshold).path.value == path


def test_threshold_of_the_request_weighs_more_than_that_of_the_stage_and_that_more_than_the_files() -> None:
    assert decide(0.5, terms_threshold=0.9).threshold == 0.9
    assert decide(0.5, terms_threshold=0.9, threshold_of_stage=0.6).threshold == 0.6
    assert decide(0.5, terms_threshold=0.9, threshold_of_stage=0.6, threshold=0.2).threshold == 0.2


def test_win_rate_of_a_float32_threshold_compares_as_written() -> None:
    assert features_of(threshold=0.41999998688697815).threshold == 0.42
    assert win_rate(0.58) == 0.42


def test_slow_path_when_fast_breaks_the_slo_takes_over() -> None:
    decision = decide(0.9, load=loads(fast_int4=900, fast_int8=900, slow=300), slo_ttft_ms=500.0)
    assert (decision.engine, decision.reason, decision.stage) == ("slow", "load", "judge")
    assert decision.detail == "judge but fast_int4 ttft 900>500ms"


def test_other_engine_of_the_path_when_it_keeps_the_slo_is_preferred() -> None:
    assert decide(0.9, load=loads(fast_int4=900, fast_int8=300, slow=300), slo_ttft_ms=500.0).engine == "fast_int8"


def test_nothing_moves_when_all_break_the_slo() -> None:
    decision = decide(0.9, load=loads(fast_int4=900, fast_int8=800, slow=700), slo_ttft_ms=500.0)
    assert (decision.engine, decision.reason) == ("fast_int4", "reason")


def test_hard_prompt_when_slow_breaks_the_slo_stays_slow() -> None:
    assert decide(0.1, load=loads(fast_int4=10, fast_int8=10, slow=900), slo_ttft_ms=500.0).engine == "slow"


def test_prompt_within_the_margin_when_slow_breaks_the_slo_goes_fast() -> None:
    load = loads(fast_int4=10, fast_int8=10, slow=900)
    assert decide(0.45, load=load, slo_ttft_ms=500.0, terms_margin=0.1).engine == "fast_int4"
    assert decide(0.35, load=load, slo_ttft_ms=500.0, terms_margin=0.1).engine == "slow"
    assert decide(0.45, load=load, slo_ttft_ms=500.0, terms_margin=0.1, threshold=0.5).engine == "slow", "the caller set the bar"


def test_tpot_and_the_slo_of_the_file_count_too() -> None:
    load = {**loads(fast_int4=10, fast_int8=10, slow=10), "fast_int4": EngineLoad(0, 0, 0.0, 10, 90)}
    assert decide(0.9, load=load, slo_tpot_ms=50.0).engine == "fast_int8"
    assert decide(0.9, load=load, terms_slo=Slo(tpot_ms=50.0)).engine == "fast_int8"
    assert decide(0.9, load=load, terms_slo=Slo(tpot_ms=50.0), slo_tpot_ms=100.0).engine == "fast_int4"
    assert decide(0.9, load=load, terms_slo=Slo(tpot_ms=50.0), terms_has_load=False).engine == "fast_int4"


@pytest.mark.parametrize("path", ["fast", "slow"])
def test_explicit_path_is_kept_whatever_the_load(path: str) -> None:
    load = loads(fast_int4=900, fast_int8=900, slow=900) | {
        ("slow" if path == "fast" else "fast_int4"): EngineLoad(0, 0, 0.0, 1, 1)
    }
    assert decide(path=path, load=load, slo_ttft_ms=500.0).path.value == path


def test_tool_result_goes_back_to_the_engine_that_asked() -> None:
    session = SessionHint("slow", 300)
    decision = decide(0.99, session=session, is_tool_result=True)
    assert (decision.engine, decision.stage, decision.reason) == ("slow", "session", "tool-loop")
    assert decide(0.99, session=None, is_tool_result=True).engine == "fast_int4"
    assert decide(0.99, session=session, is_tool_result=True, path="fast").engine == "fast_int4"
    assert decide(0.99, session=session, is_tool_result=True, terms_has_sessions=False).engine == "fast_int4"


def test_conversation_when_no_stage_is_sure_stays_where_it_is() -> None:
    session = SessionHint("slow", 300)
    assert decide(0.6, unsure=ALWAYS, session=session, num_turns=2).reason == "stays"
    assert decide(0.6, unsure=NEVER, session=session, num_turns=2).engine == "fast_int4"
    assert decide(0.6, unsure=ALWAYS, session=session, num_turns=1).engine == "fast_int4"
    assert decide(0.6, unsure=ALWAYS, session=session, num_turns=2, threshold=0.5).engine == "fast_int4"


def test_conversation_keeps_its_engine_within_a_path() -> None:
    assert decide(0.9, session=SessionHint("fast_int8", 300), num_turns=3).engine == "fast_int8"


def test_session_on_an_engine_that_is_gone_is_forgotten() -> None:
    assert decide(0.9, session=SessionHint("fast_fp8", 300), num_turns=3).engine == "fast_int4"


def record_of(score: Any = 0.55, **fields: Any) -> DecisionRecord:
    policy = policy_of(in_thread(ScriptedStage("judge", score), ALWAYS), slo=Slo(ttft_ms=500.0))
    features = features_of("SECRET words", task="SECRET-task", session="SECRET-session", **fields)
    decided = policy.decide(features, loads(fast_int4=900, fast_int8=901.0625, slow=0.1), SessionHint("slow", 7))
    return DecisionRecord.of(decided, features, policy.terms, "abc")


@pytest.mark.parametrize("score", [0.1, 1 / 3, 0.55, 0.999999999, float("nan")])
@pytest.mark.parametrize("fields", [{}, {"path": "slow"}, {"threshold": 0.3}, {"num_turns": 4}, {"is_tool_result": True}])
def test_record_when_replayed_gives_the_decision_bit_for_bit(score: float, fields: dict[str, Any]) -> None:
    record = record_of(score, **fields)
    again = DecisionRecord.from_json(record.to_json())
    assert again == record
    assert replay(again) == record.decision
    assert replay(again).line == record.decision.line


def test_record_holds_no_text_of_the_prompt() -> None:
    text = record_of().to_json()
    assert "SECRET words" not in text
    assert "SECRET-session" not in text
    assert "SECRET-task" in text, "tags are features"


def test_explanation_names_what_decided() -> None:
    lines = "\n".join(explain(record_of(0.55)))
    for part in (
        "judge: unsure score 0.5500",
        "fast_int4: 0 in flight",
        "win rate of the slow path 0.45 < 0.5",
        "gives the same decision",
    ):
        assert part in lines


def test_explanation_says_when_the_replay_differs() -> None:
    record = record_of(0.9)
    other = replace(record, decision=replace(record.decision, engine="fast_int8"))
    assert "ANOTHER" in explain(other)[-1]
    assert replay(other) != other.decision


@pytest.mark.parametrize("change", ["[]", "{}", "{", '{"version": 2}', "null", '{"version": 1, "rules": "x"}'])
def test_record_of_another_form_is_refused(change: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        DecisionRecord.from_json(change)
    assert caught.value.field == "record"


def test_record_with_a_field_that_is_not_ours_is_refused() -> None:
    value = json.loads(record_of().to_json())
    value["evidence"]["extra"] = 1
    with pytest.raises(InvalidRequest):
        DecisionRecord.from_json(json.dumps(value))
