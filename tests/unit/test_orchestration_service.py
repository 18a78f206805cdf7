"""Registry, configuration and finish reasons: what surrounds a flow."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tandem.errors import SetupError
from tandem.orchestration.config import EngineInfo, RouterConfig, load_tokenizers
from tandem.orchestration.finish import inferred_finish
from tandem.orchestration.flow import Flow
from tandem.orchestration.port import RouterChunk
from tandem.orchestration.registry import FlowRegistry
from tandem.orchestration.service import RouterService
from tandem.types import FinishReason
from tests.text_factories import make_tokenizer, write_engine_folder
from tests.unit.orchestration_fakes import POLICY, TOKENIZER, ScriptedPort, ids_of, last_of, make_config, make_request, make_service


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def make_flow(request_id: str = "q1", row: int = 0) -> Flow:
    return Flow(make_request(request_id=request_id, batch_index=row), make_config(), POLICY, ScriptedPort([]), {})


def test_stop_reaches_every_row_of_a_request_and_nothing_else() -> None:
    registry = FlowRegistry()
    rows, other = [make_flow(row=row) for row in range(3)], make_flow("q2")
    for flow in (*rows, other):
        registry.add(flow)
    assert registry.stop("q1") == 3
    assert [flow.is_cancelled for flow in (*rows, other)] == [True, True, True, False]
    assert registry.num_running == 4
    for flow in (*rows, other):
        registry.remove(flow)
        registry.remove(flow)
    assert registry.num_running == 0


def test_stop_that_overtakes_its_request_hits_all_its_rows() -> None:
    clock = Clock()
    registry = FlowRegistry(clock)
    assert registry.stop("q1") == 0
    clock.now_s += 9
    rows = [make_flow(row=row) for row in range(2)]
    for flow in rows:
        registry.add(flow)
    assert [flow.is_cancelled for flow in rows] == [True, True]
    for flow in rows:
        registry.remove(flow)
    again = make_flow()
    registry.add(again)
    assert not again.is_cancelled, "the stop is used up"


def test_stop_that_overtakes_its_request_is_forgotten_after_a_while() -> None:
    clock = Clock()
    registry = FlowRegistry(clock)
    registry.stop("q1")
    clock.now_s += 11
    flow = make_flow()
    registry.add(flow)
    assert not flow.is_cancelled


def test_stop_that_comes_too_late_does_not_hit_the_next_request_of_that_id() -> None:
    registry = FlowRegistry()
    first, second = make_flow(), make_flow()
    registry.add(first)
    registry.remove(first)
    assert registry.stop("q1") == 0
    registry.add(second)
    assert not second.is_cancelled


def test_stops_of_unknown_ids_do_not_pile_up() -> None:
    registry = FlowRegistry()
    for number in range(5000):
        registry.stop(f"unknown-{number}")
    oldest, newest = make_flow("unknown-0"), make_flow("unknown-4999")
    registry.add(oldest)
    registry.add(newest)
    assert (oldest.is_cancelled, newest.is_cancelled) == (False, True)


def test_flow_without_id_is_not_kept_and_the_empty_id_stops_nothing() -> None:
    registry = FlowRegistry()
    flow = make_flow("")
    registry.add(flow)
    assert (registry.stop(""), registry.num_running, flow.is_cancelled) == (0, 0, False)
    registry.remove(flow)


def test_requests_run_in_threads_of_their_own_and_stop_hits_one_of_them() -> None:
    gates = {f"q{number}": threading.Event() for number in range(4)}
    started = threading.Barrier(5, timeout=10)

    class Gated(ScriptedPort):
        def generate(self, engine, request, *, streaming):
            started.wait()
            assert gates[request.request_id.split(".")[0]].wait(10)
            yield from super().generate(engine, request, streaming=streaming)

    service = make_service(Gated([ids_of("the fox")]))
    answers: dict[str, list[RouterChunk]] = {name: [] for name in gates}
    threads = [
        threading.Thread(target=service.handle, args=(make_request(request_id=name, stream=True), answers[name].append))
        for name in gates
    ]
    for thread in threads:
        thread.start()
    started.wait()
    assert service.num_running == 4
    assert service.stop("q2") == 1
    for gate in gates.values():
        gate.set()
    for thread in threads:
        thread.join(10)
    assert {name: last_of(chunks)[0] for name, chunks in answers.items()} == {
        "q0": FinishReason.STOP,
        "q1": FinishReason.STOP,
        "q2": FinishReason.CANCELLED,
        "q3": FinishReason.STOP,
    }
    assert service.num_running == 0


@pytest.mark.parametrize(
    ("num_new", "num_tokens", "is_streaming", "is_last", "is_cancelled", "expected"),
    [
        (1, 3, True, False, False, None),
        (0, 3, True, False, False, FinishReason.STOP),
        (0, 3, True, True, False, FinishReason.STOP),
        (2, 3, True, True, False, FinishReason.STOP),
        (1, 8, True, False, False, FinishReason.LENGTH),
        (1, 8, True, True, True, FinishReason.LENGTH),
        (3, 3, False, False, False, FinishReason.STOP),
        (8, 8, False, True, False, FinishReason.LENGTH),
        (0, 0, False, True, False, FinishReason.STOP),
        (0, 3, True, True, True, FinishReason.CANCELLED),
        (3, 3, False, True, True, FinishReason.CANCELLED),
        (1, 3, True, False, True, None),
    ],
)
def test_finish_reason_is_inferred(
    num_new: int, num_tokens: int, is_streaming: bool, is_last: bool, is_cancelled: bool, expected: FinishReason | None
) -> None:
    reason = inferred_finish(
        num_new_tokens=num_new,
        num_tokens=num_tokens,
        max_tokens=8,
        is_streaming=is_streaming,
        is_last=is_last,
        is_cancelled=is_cancelled,
    )
    assert reason is expected


def test_engines_with_different_tokenizers_are_refused_at_start() -> None:
    engines = (EngineInfo("fast_int4", 64, TOKENIZER), EngineInfo("slow", 64, make_tokenizer(num_merged=10)))
    with pytest.raises(SetupError, match="fast_int4 and slow have different tokenizers"):
        RouterConfig(engines)


@pytest.mark.parametrize(
    ("engines", "changes", "complaint"),
    [
        ((), {}, "no engine"),
        ((EngineInfo("a", 1, TOKENIZER),), {}, "a has max_seq_len 1"),
        ((EngineInfo("a", 64, TOKENIZER),), {"default_max_tokens": 0}, "default_max_tokens"),
    ],
)
def test_faulty_configuration_is_refused(engines: tuple[EngineInfo, ...], changes: dict[str, int], complaint: str) -> None:
    with pytest.raises(SetupError, match=complaint):
        RouterConfig(engines, **changes)


def test_rules_that_name_an_engine_that_is_not_served_are_refused_at_start() -> None:
    config = RouterConfig((EngineInfo("fast_int4", 64, TOKENIZER),))
    with pytest.raises(SetupError, match="fast_int8, which is not served"):
        RouterService(config, POLICY, ScriptedPort([]))
    with pytest.raises(KeyError):
        config.engine("slow")


def test_load_tokenizers_shares_equal_ones_and_names_a_missing_file(tmp_path: Path) -> None:
    folders = {"a": write_engine_folder(tmp_path / "a"), "b": write_engine_folder(tmp_path / "b")}
    folders["c"] = write_engine_folder(tmp_path / "c", num_merged=10)
    loaded = load_tokenizers(folders)
    assert loaded["a"] is loaded["b"]
    assert loaded["c"] is not loaded["a"]
    (tmp_path / "b" / "tokenizer.json").unlink()
    with pytest.raises(SetupError, match=r"b/tokenizer\.json is missing"):
        load_tokenizers(folders)
