"""The router's queue in front of an engine, alone and in a flow."""

import threading

import pytest

from tandem.errors import EngineFailure, Overloaded, SetupError
from tandem.orchestration.admission import AdmissionConfig, AdmissionQueue
from tandem.orchestration.service import RouterService
from tandem.scheduling.length import RequestKind
from tandem.types import FinishReason
from tests.unit.orchestration_fakes import POLICY, ScriptedPort, ids_of, last_of, make_config, make_request, make_service

KIND = RequestKind("", 64)


def make_queue(**config):
    return AdmissionQueue("slow", AdmissionConfig(**{"max_in_flight": 1, **config}), clock_s=lambda: 1.0)


def test_place_when_engine_has_room_then_in_flight_at_once():
    queue = make_queue(max_in_flight=2)
    assert [queue.join(KIND, 5).wait(), queue.join(KIND, 5).wait()] == [True, True]
    assert (queue.num_in_flight, queue.num_waiting) == (2, 0)


@pytest.mark.parametrize(("policy", "expected"), [("slo", ["first", "short", "long"]), ("fcfs", ["first", "long", "short"])])
def test_place_when_one_leaves_then_policy_decides_who_is_next(policy, expected):
    queue = make_queue(policy=policy)
    running = queue.join(KIND, 500)
    # The first found nobody waiting, so it is promoted from the start: nobody may overtake it.
    places = {name: queue.join(KIND, size) for name, size in (("first", 1), ("long", 4000), ("short", 5))}
    order = []
    while queue.num_waiting:
        running.leave()
        name = next(name for name, place in places.items() if place.was_admitted and name not in order)
        order.append(name)
        running = places[name]
    assert order == expected


def test_place_when_too_many_wait_then_overloaded_and_no_trace():
    queue = make_queue(max_waiting=2)
    places = [queue.join(KIND, 5) for _ in range(3)]
    with pytest.raises(Overloaded, match="slow is full"):
        queue.join(KIND, 5)
    places[1].cancel()
    queue.join(KIND, 5).leave()
    for place in places:
        place.leave()
        place.leave()
    assert (queue.num_in_flight, queue.num_waiting) == (0, 0)


def test_place_when_cancelled_then_its_wait_ends_and_the_others_go_on():
    queue = make_queue()
    running, waiting, other = (queue.join(KIND, 5) for _ in range(3))
    threading.Timer(0.05, waiting.cancel).start()
    assert not waiting.wait()
    waiting.leave()
    running.cancel()  # in flight: nothing to give up
    assert queue.num_in_flight == 1
    running.leave(7)
    assert other.wait()


@pytest.mark.parametrize("config", [{"max_in_flight": 0}, {"max_waiting": -1}, {"slo_ttft_ms": 0}, {"policy": "lifo"}])
def test_config_when_a_value_is_wrong_then_refused(config):
    with pytest.raises(SetupError):
        AdmissionConfig(**config)


class Gated(ScriptedPort):
    """Answers only when the gate is open."""

    def __init__(self, scripts):
        super().__init__(scripts)
        self.gate = threading.Event()
        self.has_started = threading.Event()

    def generate(self, engine, request, *, streaming):
        self.has_started.set()
        assert self.gate.wait(60)
        yield from super().generate(engine, request, streaming=streaming)


def start(service, request):
    chunks: list = []
    errors: list = []

    def run():
        try:
            service.handle(request, chunks.append)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, chunks, errors


def test_flow_when_engine_is_full_then_waits_and_a_stop_ends_it_without_a_call():
    port = Gated([ids_of("the fox")])
    service = RouterService(make_config(admission=AdmissionConfig(max_in_flight=1, max_waiting=1)), POLICY, port)
    first, first_chunks, _ = start(service, make_request(request_id="a"))
    assert port.has_started.wait(60)
    second, second_chunks, _ = start(service, make_request(request_id="b"))
    queue = next(queue for queue in service._admission.values() if queue.num_in_flight)
    while queue.num_waiting == 0:
        second.join(0.01)
    third, _, errors = start(service, make_request(request_id="c"))
    third.join(60)
    assert [type(error) for error in errors] == [Overloaded]
    assert service.stop("b") == 1
    second.join(60)
    assert last_of(second_chunks) == (FinishReason.CANCELLED, 0)
    port.gate.set()
    first.join(60)
    assert last_of(first_chunks)[0] is FinishReason.STOP
    assert len(port.calls) == 1
    assert (queue.num_in_flight, queue.num_waiting, service.num_running) == (0, 0, 0)


def test_flow_when_engine_fails_then_its_place_is_free_again():
    def fail(number):
        raise EngineFailure("it broke")

    service = make_service(ScriptedPort([ids_of("the fox")], before_delta=fail))
    with pytest.raises(EngineFailure):
        service.handle(make_request(), lambda chunk: None)
    assert all(queue.num_in_flight == 0 for queue in service._admission.values())
