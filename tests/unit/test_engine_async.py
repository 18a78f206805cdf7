"""The engine behind its thread: submit, cancel, refuse, fail and shut down from other threads."""

import logging
import threading
import time
from contextlib import contextmanager

import pytest

from tandem.engine import AsyncEngine
from tandem.errors import EngineFailure, InvalidRequest, Overloaded, from_wire
from tandem.types import FinishReason
from tests.factories import Answer, ScriptedDecoder, make_decoder, make_engine, make_prompt, make_request, run_one

TIMEOUT_S = 20.0  # only reached when a test fails


class Collector:
    """A sink that keeps the answer and tells when it is complete."""

    def __init__(self):
        self.answer = Answer()
        self.calls = []
        self.thread_names = set()
        self._progress = threading.Condition()

    def __call__(self, deltas):
        with self._progress:
            self.calls.append(list(deltas))
            self.thread_names.add(threading.current_thread().name)
            for delta in deltas:
                self.answer.take(delta)
            self._progress.notify_all()

    def wait_for_calls(self, count):
        with self._progress:
            assert self._progress.wait_for(lambda: len(self.calls) >= count, TIMEOUT_S)

    def wait(self):
        with self._progress:
            assert self._progress.wait_for(lambda: self.answer.num_last == 1, TIMEOUT_S)
        return self.answer


class GatedDecoder(ScriptedDecoder):
    """Waits in every forward pass until a permit is given, so that a test decides when a step ends."""

    def __init__(self, row, **options):
        super().__init__(row, **options)
        self.permits = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)

    def forward(self, batch):
        self.entered.release()
        assert self.permits.acquire(timeout=TIMEOUT_S)
        return super().forward(batch)

    def wait_until_entered(self):
        assert self.entered.acquire(timeout=TIMEOUT_S)

    def open(self):
        self.permits.release(100_000)


@contextmanager
def running(decoder=None, **config):
    engine = AsyncEngine(make_engine(decoder, **config))
    try:
        yield engine
    finally:
        if isinstance(decoder, GatedDecoder):
            decoder.open()
        engine.shutdown()


def assert_is_back_at_start(engine):
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_used_blocks, stats.num_leaked_blocks) == (0, 0, 0, 0)


def test_submit_when_many_threads_do_then_each_gets_its_own_answer():
    requests = [make_request(make_prompt(i, 2 + i % 7), max_tokens=6) for i in range(32)]
    expected = [run_one(make_engine(), request).tokens for request in requests]
    sinks = [Collector() for _ in requests]
    with running(make_decoder(num_blocks=20)) as engine:
        threads = [
            threading.Thread(target=engine.submit, args=(request, sink)) for request, sink in zip(requests, sinks, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
        assert [sink.wait().tokens for sink in sinks] == expected
        assert_is_back_at_start(engine)
        assert engine.stats().num_completed == 32
        assert all(sink.thread_names == {engine.engine_thread_name} for sink in sinks)


def test_sink_when_request_has_choices_then_called_once_per_step():
    sink = Collector()
    with running() as engine:
        engine.submit(make_request(max_tokens=3, num_return_sequences=3), sink)
        sink.wait()
    assert [[delta.sequence_index for delta in call] for call in sink.calls] == [[0, 1, 2]] * 3


def test_cancel_when_step_is_running_then_takes_effect_with_its_end():
    decoder = GatedDecoder([0.0, 1.0])
    sink = Collector()
    with running(decoder) as engine:
        request = make_request([0], max_tokens=50)
        engine.submit(request, sink)
        decoder.wait_until_entered()
        assert engine.stats().last_cancel_time_s == 0.0
        before = time.time()
        assert engine.cancel(request.request_id)
        decoder.permits.release()
        answer = sink.wait()
        assert (answer.token_ids[0], answer.finish_reason) == ([1], FinishReason.CANCELLED)
        assert decoder.num_forwards == 1
        assert_is_back_at_start(engine)
        assert engine.stats().num_cancelled == 1
        assert before <= engine.stats().last_cancel_time_s <= time.time()


def test_cancel_when_others_go_on_then_told_before_their_next_step():
    decoder = GatedDecoder([0.0, 1.0])
    stays, leaves = Collector(), Collector()
    with running(decoder) as engine:
        engine.submit(make_request([0], max_tokens=50), stays)
        decoder.wait_until_entered()
        request = make_request([0], max_tokens=5)
        engine.submit(request, leaves)
        assert engine.cancel(request.request_id)
        decoder.permits.release()  # the running step may end, the next one stands at the gate
        assert leaves.wait().finish_reason == FinishReason.CANCELLED
        decoder.wait_until_entered()
        assert (decoder.num_forwards, stays.answer.num_last) == (1, 0)


def test_cancel_when_request_waits_then_over_at_once_and_never_runs():
    decoder = GatedDecoder([0.0, 1.0])
    runs, waits = Collector(), Collector()
    with running(decoder, max_num_seqs=1) as engine:
        engine.submit(make_request([0], max_tokens=3), runs)
        decoder.wait_until_entered()
        decoder.permits.release()  # one more boundary, so that the second request is in the engine's own queue
        request = make_request([0], max_tokens=5)
        engine.submit(request, waits)
        decoder.wait_until_entered()
        assert engine.cancel(request.request_id)
        assert waits.answer.num_last == 1  # while the step of the other still stands at the gate
        ended = engine.stats().last_cancel_time_s
        assert ended > 0.0
        assert engine.stats().num_waiting == 0
        assert not engine.cancel(request.request_id)
        decoder.open()
        assert runs.wait().token_ids[0] == [1, 1, 1]
        assert (waits.answer.token_ids[0], waits.answer.finish_reason) == ([], FinishReason.CANCELLED)
        assert engine.stats().num_cancelled == 1
        assert engine.stats().last_cancel_time_s == ended  # not told a second time when the engine hears of it
        assert_is_back_at_start(engine)
        again = Collector()
        engine.submit(request, again)
        assert again.wait().token_ids[0] == [1] * 5


def test_cancel_when_request_still_waits_for_its_first_step_then_it_never_runs():
    decoder = GatedDecoder([0.0, 1.0])
    first, second = Collector(), Collector()
    with running(decoder) as engine:
        engine.submit(make_request([0], max_tokens=1), first)
        decoder.wait_until_entered()
        request = make_request([0], max_tokens=5)
        engine.submit(request, second)
        assert engine.cancel(request.request_id)
        decoder.open()
        assert second.wait().finish_reason == FinishReason.CANCELLED
        first.wait()
        assert second.answer.token_ids[0] == []


def test_cancel_when_request_is_unknown_or_over_then_false():
    sink = Collector()
    with running() as engine:
        assert not engine.cancel("nobody")
        request = make_request(max_tokens=1)
        engine.submit(request, sink)
        sink.wait()
        assert not engine.cancel(request.request_id)


def test_submit_when_queue_is_full_then_overloaded_and_others_unharmed():
    decoder = GatedDecoder([0.0, 1.0])
    sinks = [Collector() for _ in range(4)]
    with running(decoder, max_num_seqs=1, max_queue_size=2) as engine:
        engine.submit(make_request([0], max_tokens=2), sinks[0])
        decoder.wait_until_entered()
        # The first step is not over, so the first request still counts against its free slot.
        engine.submit(make_request([0], max_tokens=2), sinks[1])
        engine.submit(make_request([0], max_tokens=2), sinks[2])
        with pytest.raises(Overloaded, match=r"waiting queue is full \(2 requests\)"):
            engine.submit(make_request([0]), sinks[3])
        assert (engine.stats().num_refused, engine.stats().num_waiting) == (1, 3)
        decoder.open()
        assert [sink.wait().tokens for sink in sinks[:3]] == [[1, 1]] * 3
        assert sinks[3].calls == []
        engine.submit(make_request([0], max_tokens=1), sinks[3])
        sinks[3].wait()


def test_submit_when_id_is_in_use_then_refused_until_it_is_over():
    decoder = GatedDecoder([0.0, 1.0])
    first, second = Collector(), Collector()
    with running(decoder) as engine:
        engine.submit(make_request([0], request_id="a", max_tokens=1), first)
        with pytest.raises(InvalidRequest, match="request_id: got a;"):
            engine.submit(make_request([0], request_id="a"), second)
        decoder.open()
        first.wait()
        engine.submit(make_request([0], request_id="a", max_tokens=1), second)
        assert second.wait().tokens == [1]


def test_submit_when_request_is_invalid_then_refused_and_nothing_counts():
    with running() as engine:
        with pytest.raises(InvalidRequest, match="prompt_ids"):
            engine.submit(make_request([99999]), Collector())
        assert engine.stats().num_accepted == 0
        assert_is_back_at_start(engine)


def test_sink_when_it_submits_the_same_id_again_then_accepted():
    second = Collector()
    with running() as engine:
        request = make_request(request_id="again", max_tokens=1)
        engine.submit(request, lambda deltas: engine.submit(request, second))
        assert len(second.wait().tokens) == 1


def test_sink_when_it_raises_then_its_request_is_cancelled_and_others_go_on(caplog):
    neighbour = Collector()
    calls = []

    def broken(deltas):
        calls.append(deltas)
        raise ValueError("no reader")

    with running() as engine, caplog.at_level(logging.CRITICAL):
        request = make_request(max_tokens=80)
        engine.submit(request, broken)
        engine.submit(make_request(max_tokens=30), neighbour)
        assert len(neighbour.wait().tokens) == 30
        assert engine.stats().num_cancelled == 1
        assert_is_back_at_start(engine)
    assert calls[-1][-1].finish_reason == FinishReason.CANCELLED
    assert len(calls) == 2


def test_forward_when_it_fails_then_later_requests_are_served(caplog):
    decoder = ScriptedDecoder([0.0, 1.0])
    first, second = Collector(), Collector()
    with running(decoder) as engine, caplog.at_level(logging.CRITICAL):
        decoder.fail_next = EngineFailure("kernel broke")
        engine.submit(make_request([0]), first)
        assert from_wire(first.wait().error).message == "kernel broke"
        engine.submit(make_request([0], max_tokens=2), second)
        assert second.wait().tokens == [1, 1]
        assert engine.is_alive


def test_step_when_a_bug_raises_then_requests_end_and_engine_starts_afresh(caplog, monkeypatch):
    core = make_engine()
    sample = core._sampler.sample
    failures = iter([True])

    def broken_once(*args):
        if next(failures, False):
            raise ZeroDivisionError
        return sample(*args)

    monkeypatch.setattr(core._sampler, "sample", broken_once)
    first, second = Collector(), Collector()
    engine = AsyncEngine(core)
    with caplog.at_level(logging.CRITICAL):
        engine.submit(make_request(), first)
        assert from_wire(first.wait().error).code == "engine_failure"
        engine.submit(make_request(max_tokens=2), second)
        assert len(second.wait().tokens) == 2
        assert_is_back_at_start(engine)
    engine.shutdown()


def test_thread_when_it_dies_then_open_requests_end_and_new_ones_are_refused(caplog, monkeypatch):
    core = make_engine()
    sink = Collector()
    monkeypatch.setattr(core, "add", lambda request: 1 / 0)
    engine = AsyncEngine(core)
    with caplog.at_level(logging.CRITICAL):
        engine.submit(make_request(), sink)
        assert sink.wait().finish_reason == FinishReason.ERROR
    with pytest.raises(EngineFailure, match="restart it"):
        engine.submit(make_request(), Collector())
    assert not engine.is_alive
    engine.shutdown()


def test_shutdown_when_requests_run_and_wait_then_each_ends_with_one_error():
    decoder = GatedDecoder([0.0, 1.0])
    sinks = [Collector() for _ in range(3)]
    engine = AsyncEngine(make_engine(decoder, max_num_seqs=1))
    engine.submit(make_request([0], max_tokens=90), sinks[0])
    decoder.wait_until_entered()
    for sink in sinks[1:]:  # the thread takes these no more
        engine.submit(make_request([0], max_tokens=90), sink)
    closer = threading.Thread(target=engine.shutdown)
    closer.start()
    while engine.is_alive:
        time.sleep(0.001)
    decoder.permits.release()
    closer.join(TIMEOUT_S)
    for sink in sinks:
        answer = sink.wait()
        assert answer.finish_reason == FinishReason.ERROR
        assert from_wire(answer.error).code == "overloaded"
    with pytest.raises(Overloaded, match="shutting down"):
        engine.submit(make_request([0]), Collector())
    engine.shutdown()
    assert_is_back_at_start(engine)


def test_shutdown_when_grace_is_given_then_running_requests_finish():
    """BC-24 (b) at engine level."""
    sinks = [Collector() for _ in range(6)]
    engine = AsyncEngine(make_engine(max_num_seqs=2))
    for sink in sinks:
        engine.submit(make_request(max_tokens=20), sink)
    engine.shutdown(grace_s=TIMEOUT_S)
    assert [len(sink.answer.tokens) for sink in sinks] == [20] * 6
    assert all(sink.answer.finish_reason == FinishReason.LENGTH for sink in sinks)


def test_stats_when_blocks_leaked_then_reported_and_free_again(caplog):
    core = make_engine()
    core._kv.pool.allocate(2)
    with caplog.at_level(logging.CRITICAL):
        engine = AsyncEngine(core)
        sink = Collector()
        engine.submit(make_request(max_tokens=1), sink)
        sink.wait()
        engine.shutdown()
    assert (engine.stats().num_leaked_blocks, engine.stats().num_used_blocks) == (2, 0)


def test_stats_when_engine_is_idle_between_requests_then_at_their_start():
    with running() as engine:
        for _ in range(3):
            sink = Collector()
            engine.submit(make_request(max_tokens=4), sink)
            sink.wait()
            assert_is_back_at_start(engine)
        assert (engine.stats().num_completed, engine.stats().num_generated_tokens) == (3, 12)
