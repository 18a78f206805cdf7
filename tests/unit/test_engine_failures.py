"""Failures and cancels: who is hit, who is not, and that nothing is left behind."""

import logging

import numpy as np
import pytest

from tandem.errors import EngineFailure, from_wire
from tandem.types import FinishReason
from tests.factories import (
    ScriptedDecoder,
    assert_is_idle,
    collect,
    make_decoder,
    make_engine,
    make_prompt,
    make_request,
    run_all,
    run_one,
)

ROW = [0.0, 3.0, 2.0, 1.0]


class NanAfterToken(ScriptedDecoder):
    """Gives a NaN logit after an input token 9."""

    def rows(self, batch):
        rows = super().rows(batch)
        rows[batch.input_ids[batch.sample_idx] == 9, 2] = np.nan
        return rows


@pytest.mark.parametrize(
    ("error", "message"),
    [(EngineFailure("kernel broke"), "kernel broke"), (RuntimeError("secret path /x"), "the forward pass failed")],
)
def test_forward_when_it_fails_then_its_batch_ends_with_errors_and_engine_lives_on(error, message, caplog):
    decoder = ScriptedDecoder(ROW)
    engine = make_engine(decoder, max_num_seqs=2)
    requests = [make_request([0] * 3, max_tokens=4) for _ in range(3)]
    for request in requests:
        engine.add(engine.prepare(request))
    answers = collect(engine.step())
    decoder.fail_next = error
    with caplog.at_level(logging.CRITICAL):
        collect(engine.step(), answers)
    for request in requests[:2]:
        answer = answers[request.request_id]
        assert (answer.tokens, answer.finish_reason, answer.num_last) == ([1], FinishReason.ERROR, 1)
        told = from_wire(answer.error)
        assert (told.code, message in told.message, "secret" in told.message) == ("engine_failure", True, False)
    assert engine.stats().num_used_blocks == 0
    answers = run_all(engine, [])
    assert answers[requests[2].request_id].tokens == [1, 1, 1, 1]
    assert (engine.stats().num_failed, engine.stats().num_completed) == (2, 1)


def test_row_when_it_holds_nan_then_only_its_request_fails():
    engine = make_engine(NanAfterToken([0.0] * 4 + [1.0] + [0.0] * 5))
    good, bad, sampled = make_request([1, 2]), make_request([1, 9]), make_request([1], temperature=1.0, seed=1)
    answers = run_all(engine, [good, bad, sampled])
    assert answers[good.request_id].tokens == [4] * 8
    assert len(answers[sampled.request_id].tokens) == 8
    failed = answers[bad.request_id]
    assert (failed.tokens, failed.finish_reason) == ([], FinishReason.ERROR)
    assert from_wire(failed.error).code == "engine_failure"


@pytest.mark.parametrize("seed", range(8))
def test_row_when_nan_hits_one_of_several_choices_then_request_ends_once(seed):
    # Token 9 is as likely as token 4, so some of the choices meet it early; the siblings end with the request.
    row = np.full(10, -50.0)
    row[[4, 9]] = 0.0
    engine = make_engine(NanAfterToken(row))
    answer = run_one(engine, make_request([1], temperature=1.0, seed=seed, num_return_sequences=4))
    assert answer.num_last == 1
    assert answer.error is not None


@pytest.mark.parametrize("num_steps", range(7))
def test_cancel_when_waiting_prefilling_or_decoding_then_blocks_are_free_at_once(num_steps):
    engine = make_engine(make_decoder(), max_num_seqs=1, max_num_batched_tokens=8)
    first, second = make_request(make_prompt(0, 24), max_tokens=9), make_request(make_prompt(1, 24), max_tokens=9)
    for request in (first, second):
        engine.add(engine.prepare(request))
    answers = {}
    for _ in range(num_steps):
        collect(engine.step(), answers)
    for request in (second, first):
        last = engine.cancel(request.request_id)
        assert (last.finish_reason, last.is_last, last.token_ids, last.error) == (FinishReason.CANCELLED, True, (), None)
    assert_is_idle(engine)
    assert engine.step() == []
    assert engine.stats().num_cancelled == 2


@pytest.mark.parametrize("num_steps", range(5))
def test_cancel_when_request_has_choices_then_all_of_them_end_in_one_delta(num_steps):
    engine = make_engine()
    request = make_request(make_prompt(0, 20), num_return_sequences=3, temperature=1.0)
    engine.add(engine.prepare(request))
    answers = {}
    for _ in range(num_steps):
        collect(engine.step(), answers)
    collect([engine.cancel(request.request_id)], answers)
    assert answers[request.request_id].num_last == 1
    assert_is_idle(engine)


def test_cancel_when_request_is_preempted_then_it_ends():
    engine = make_engine(make_decoder(num_blocks=6, block_size=2))
    requests = [make_request(make_prompt(i, 3), max_tokens=9) for i in range(2)]
    for request in requests:
        engine.add(engine.prepare(request))
    while engine.stats().num_preemptions == 0:
        engine.step()
    assert engine.cancel(requests[1].request_id).finish_reason == FinishReason.CANCELLED
    assert engine.stats().num_waiting == 0
    run_all(engine, [])


def test_cancel_when_id_is_unknown_or_ended_then_none():
    engine = make_engine()
    request = make_request()
    run_one(engine, request)
    assert engine.cancel(request.request_id) is None
    assert engine.cancel("nobody") is None
    assert engine.stats().num_cancelled == 0


def test_fail_all_when_requests_wait_and_run_then_every_one_gets_the_error():
    engine = make_engine(max_num_seqs=1)
    requests = [make_request(make_prompt(i, 5)) for i in range(3)]
    for request in requests:
        engine.add(engine.prepare(request))
    engine.step()
    deltas = engine.fail_all(EngineFailure("over"))
    assert [delta.request_id for delta in deltas] == [request.request_id for request in requests]
    assert {(delta.finish_reason, delta.is_last, delta.error) for delta in deltas} == {
        (FinishReason.ERROR, True, "[tandem:engine_failure] over")
    }
    assert_is_idle(engine)


def test_reclaim_when_blocks_leaked_then_freed_counted_and_logged(caplog):
    engine = make_engine()
    assert engine.reclaim_leaked_blocks() == 0
    engine._kv.pool.allocate(3)
    with caplog.at_level(logging.ERROR):
        assert engine.reclaim_leaked_blocks() == 3
    assert "3 KV blocks" in caplog.text
    assert engine.stats().num_leaked_blocks == 3
    assert_is_idle(engine)
