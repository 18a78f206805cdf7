"""What surrounds a decision in the router: sessions, predictions, counts, records."""

from __future__ import annotations

import pytest

from tandem.orchestration.admission import AdmissionConfig, AdmissionQueue
from tandem.orchestration.decider import CallLatency
from tandem.orchestration.engine_load import EnginePredictor
from tandem.orchestration.port import RouterChunk
from tandem.orchestration.service import RouterService
from tandem.orchestration.sessions import SessionStore
from tandem.routing.explain import DecisionRecord, replay
from tandem.routing.policy import SessionHint
from tandem.scheduling.length import RequestKind
from tests.routing_factories import ALWAYS, ScriptedStage, in_thread, policy_of
from tests.unit.orchestration_fakes import ScriptedPort, ids_of, make_config, make_request, make_service

KIND = RequestKind("", 64)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_session_is_found_by_its_tenant_only() -> None:
    store = SessionStore(10, 60)
    store.note("tenant-a", "chat", "slow", 50)
    assert store.find("tenant-a", "chat") == SessionHint("slow", 50)
    assert store.find("tenant-b", "chat") is None
    assert store.find("", "tenant-achat") is None
    assert store.find("tenant-a", "") is None
    store.note("tenant-a", "", "slow", 1)
    assert len(store) == 1


def test_sessions_are_bounded_and_the_one_not_heard_of_for_longest_goes_first() -> None:
    store = SessionStore(2, 60)
    for name in ("one", "two", "one", "three"):
        store.note("t", name, "slow", 1)
    assert [store.find("t", name) is not None for name in ("one", "two", "three")] == [True, False, True]


def test_session_ends_after_its_time() -> None:
    clock = Clock()
    store = SessionStore(2, 60, clock)
    store.note("t", "one", "slow", 1)
    clock.now_s += 60
    assert store.find("t", "one") is not None
    clock.now_s += 1
    assert store.find("t", "one") is None


def predictor(kv_tokens: int | None = None, **admission: int) -> tuple[EnginePredictor, AdmissionQueue]:
    queue = AdmissionQueue("engine", AdmissionConfig(**admission))
    return EnginePredictor(queue, kv_tokens), queue


def test_prediction_learns_what_the_engine_takes() -> None:
    engine, _ = predictor()
    for num_tokens in (50, 100, 200, 400) * 20:
        engine.learn_ttft(num_tokens, 1, 10.0 + 3.0 * num_tokens)
        engine.learn_tpot(1, 40.0)
    seen = engine.predict(KIND, 300)
    assert seen.ttft_ms == pytest.approx(910, rel=0.1)
    assert seen.tpot_ms == pytest.approx(40, rel=0.1)


def test_prediction_when_one_request_stalls_then_later_ones_are_expected_to_be_as_before() -> None:
    engine, _ = predictor()
    for num_tokens in (50, 100, 200, 400) * 20:
        engine.learn_ttft(num_tokens, 1, 10.0 + 3.0 * num_tokens)
    usual = engine.predict(KIND, 100).ttft_ms
    engine.learn_ttft(100, 1, 60_000.0)
    assert engine.predict(KIND, 100).ttft_ms < 2 * usual


def test_prediction_when_an_engine_is_avoided_then_it_gets_another_chance() -> None:
    clock = Clock()
    engine = EnginePredictor(AdmissionQueue("engine", AdmissionConfig()), None, clock)
    at_first = engine.predict(KIND, 100)
    for _ in range(50):
        engine.learn_ttft(100, 1, 9_000.0)
        engine.learn_tpot(1, 900.0)
    slow = engine.predict(KIND, 100)
    assert slow.ttft_ms == pytest.approx(9_000, rel=0.1)
    assert slow.tpot_ms == pytest.approx(900, rel=0.1)
    clock.now_s += 600
    assert engine.predict(KIND, 100).ttft_ms == pytest.approx(at_first.ttft_ms, rel=0.1)
    assert engine.predict(KIND, 100).tpot_ms == pytest.approx(at_first.tpot_ms, rel=0.1)


def test_prediction_counts_what_is_cached_and_who_waits() -> None:
    engine, queue = predictor(max_in_flight=1, max_waiting=8)
    idle = engine.predict(KIND, 200)
    assert engine.predict(KIND, 200, 150).ttft_ms < idle.ttft_ms
    places = [queue.join(KIND, 200)]
    full = engine.predict(KIND, 200)
    places += [queue.join(KIND, 200) for _ in range(3)]
    queued = engine.predict(KIND, 200)
    assert (queued.num_in_flight, queued.num_waiting) == (1, 3)
    assert idle.ttft_ms < full.ttft_ms < queued.ttft_ms
    for place in places:
        place.cancel()
        place.leave(5)
    assert engine.predict(KIND, 200).num_waiting == 0


def test_prediction_foresees_a_full_kv_cache() -> None:
    engine, queue = predictor(kv_tokens=600)
    place = queue.join(KIND, 400)
    tight = engine.predict(KIND, 400)
    assert tight.kv_use == pytest.approx((464 + 464) / 600)
    roomy, other = predictor(kv_tokens=6000)
    other.join(KIND, 400)
    assert tight.ttft_ms > roomy.predict(KIND, 400).ttft_ms
    place.leave(5)
    assert engine.predict(KIND, 400).kv_use < 1.0


def test_times_of_a_call_are_those_of_its_tokens() -> None:
    latency = CallLatency(10.0, 2, 100)
    assert (latency.ttft_ms, latency.tpot_ms) == (None, None)
    latency.note(10.1, 0, 0)
    latency.note(10.5, 2, 60)
    assert (latency.ttft_ms, latency.tpot_ms, latency.num_computed_tokens) == (500.0, None, 40)
    latency.note(10.7, 1, 60)
    latency.note(10.9, 1, 60)
    assert latency.tpot_ms == pytest.approx(200.0)


def run(service: RouterService, port: ScriptedPort, **request: object) -> list[RouterChunk]:
    chunks: list[RouterChunk] = []
    service.handle(make_request(**request), chunks.append)  # type: ignore[arg-type]
    return chunks


def test_record_goes_out_once_with_the_first_chunk() -> None:
    port = ScriptedPort([ids_of("abc")])
    chunks = run(make_service(port), port, text="Translate it", stream=True)
    assert len(chunks) > 1
    record = DecisionRecord.from_json(chunks[0].decision_record)
    assert [chunk.decision_record for chunk in chunks[1:]] == [""] * (len(chunks) - 1)
    assert replay(record) == record.decision
    assert record.decision.line == chunks[0].decision
    assert set(record.evidence.load) == {"fast_int4", "fast_int8", "slow"}
    assert "Translate" not in chunks[0].decision_record


def test_decisions_and_stages_are_counted_by_closed_sets() -> None:
    port = ScriptedPort([ids_of("abc")])
    service = make_service(port)
    for text in ("Translate it", "Translate that", "Prove it"):
        run(service, port, text=text)
    decisions, stages = service.counts.read()
    assert decisions == {("rules", "intent-structured", "fast"): 2, ("rules", "intent-hard", "slow"): 1}
    assert stages == {("rules", "sure"): 3}


def session_service(port: ScriptedPort, stage: ScriptedStage) -> RouterService:
    return RouterService(make_config(), policy_of(in_thread(stage, ALWAYS)), port)


def test_conversation_follows_its_session_until_a_stage_is_sure() -> None:
    port, stage = ScriptedPort([ids_of("abc")]), ScriptedStage("judge", 0.2)
    service = session_service(port, stage)
    assert run(service, port, session="s1")[0].engine == "slow"
    stage.score = 0.7
    again = run(service, port, session="s1", num_turns=2)[0]
    assert (again.engine, DecisionRecord.from_json(again.decision_record).decision.reason) == ("slow", "stays")
    assert run(service, port, session="s2", num_turns=2)[0].engine == "fast_int4"
    assert run(service, port, num_turns=2)[0].engine == "fast_int4"


def test_tool_result_goes_to_the_engine_of_its_session_without_a_stage() -> None:
    port, stage = ScriptedPort([ids_of("abc")]), ScriptedStage("judge", 0.2)
    service = session_service(port, stage)
    run(service, port, session="s1")
    stage.score = 0.99
    result = run(service, port, session="s1", num_turns=2, is_tool_result=True)[0]
    assert (result.engine, result.decision.split(" ")[0]) == ("slow", "session:tool-loop=slow")
    assert len(stage.calls) == 1
