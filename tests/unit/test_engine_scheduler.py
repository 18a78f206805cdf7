"""Stories of the scheduler, seen as the (past, new) tokens per sequence that the decoder is asked for."""

import pytest

from tests.factories import ScriptedDecoder, assert_is_idle, collect, make_decoder, make_engine, make_prompt, make_request, run_all


def start(engine, *requests):
    for request in requests:
        engine.add(engine.prepare(request))


def test_step_when_prompts_exceed_budget_then_chunked_and_decodes_come_first():
    decoder = make_decoder()
    engine = make_engine(decoder, max_num_batched_tokens=8)
    start(engine, make_request(make_prompt(0, 3)), make_request(make_prompt(1, 13)), make_request(make_prompt(2, 2)))
    for _ in range(4):
        engine.step()
    assert decoder.batches == [
        [(0, 3), (0, 5)],  # the second prompt gets what the first leaves
        [(3, 1), (5, 7)],  # one decode token is set aside before the chunk
        [(4, 1), (12, 1), (0, 2)],  # the last prompt token counts like a decode; the third prompt is admitted
        [(5, 1), (13, 1), (2, 1)],
    ]


def test_step_when_all_slots_are_taken_then_next_waits_for_one():
    decoder = make_decoder()
    engine = make_engine(decoder, max_num_seqs=2)
    requests = [make_request(make_prompt(i, 2), max_tokens=2 + i) for i in range(3)]
    start(engine, *requests)
    engine.step()
    assert (engine.stats().num_running, engine.stats().num_waiting) == (2, 1)
    engine.step()
    engine.step()
    assert decoder.batches == [[(0, 2), (0, 2)], [(2, 1), (2, 1)], [(3, 1), (0, 2)]]


def test_step_when_request_wants_three_choices_then_three_slots_are_kept():
    decoder = make_decoder()
    engine = make_engine(decoder, max_num_seqs=4)
    start(engine, make_request(make_prompt(0, 2)), make_request(make_prompt(1, 2), num_return_sequences=3), make_request())
    engine.step()
    assert decoder.batches == [[(0, 2), (0, 2)]]
    engine.step()
    assert decoder.batches[1] == [(2, 1)] * 4
    assert engine.stats().num_waiting == 1


def test_fork_when_others_were_admitted_later_then_siblings_stand_before_them():
    decoder = make_decoder()
    engine = make_engine(decoder)
    start(engine, make_request(make_prompt(0, 2), num_return_sequences=2), make_request(make_prompt(1, 5)))
    engine.step()
    engine.step()
    assert decoder.batches[1] == [(2, 1), (2, 1), (5, 1)]


def test_step_when_pool_is_short_then_last_admitted_is_preempted_and_first_goes_on():
    decoder = make_decoder(num_blocks=6, block_size=2)
    engine = make_engine(decoder)
    first, second = (make_request(make_prompt(i, 3), max_tokens=9) for i in range(2))
    start(engine, first, second)
    answers = collect(engine.step())
    while engine.stats().num_preemptions == 0:
        collect(engine.step(), answers)
    # Both hold 3 blocks for 6 tokens; the first takes the next block, so the second must go.
    assert decoder.batches[-1] == [(6, 1)]
    assert (engine.stats().num_running, engine.stats().num_waiting) == (1, 1)
    while engine.has_work:
        collect(engine.step(), answers)
    assert [len(answers[request.request_id].tokens) for request in (first, second)] == [9, 9]
    assert (0, 7) in decoder.batches[-5]  # prompt and four tokens in one recompute
    assert_is_idle(engine)


def test_admission_when_running_sequences_may_need_blocks_then_room_is_left_for_them():
    engine = make_engine(make_decoder(num_blocks=4, block_size=4))
    start(engine, make_request(make_prompt(0, 8), max_tokens=4), make_request(make_prompt(1, 8), max_tokens=4))
    engine.step()
    # The second would fit into the two free blocks, but the first is about to need one of them.
    assert (engine.stats().num_running, engine.stats().num_waiting) == (1, 1)


def test_admission_when_head_of_queue_does_not_fit_then_nobody_overtakes_it():
    engine = make_engine(make_decoder(num_blocks=8, block_size=4))
    start(engine, make_request(make_prompt(0, 16), max_tokens=8), make_request(make_prompt(1, 20)), make_request([1], max_tokens=1))
    engine.step()
    assert (engine.stats().num_running, engine.stats().num_waiting) == (1, 2)


def test_admission_when_another_order_is_given_then_it_decides():
    from tandem.engine import EngineConfig, LLMEngine
    from tandem.engine.waiting import FirstComeFirstServed

    class ShortestFirst(FirstComeFirstServed):
        def peek(self):
            return min(self, key=lambda sequence: sequence.num_tokens, default=None)

    decoder = make_decoder()
    engine = LLMEngine(decoder, EngineConfig(max_num_seqs=1), ShortestFirst())
    start(engine, *(make_request(make_prompt(n, n), max_tokens=1) for n in (9, 4, 6)))
    while engine.has_work:
        engine.step()
    assert decoder.batches == [[(0, 4)], [(0, 6)], [(0, 9)]]


def test_step_when_there_is_no_work_then_decoder_is_left_alone():
    decoder = ScriptedDecoder([0.0, 1.0])
    engine = make_engine(decoder)
    assert engine.step() == []
    assert decoder.num_forwards == 0


@pytest.mark.parametrize("max_num_batched_tokens", [4, 32])
def test_stats_when_requests_ran_then_every_token_is_counted_once(max_num_batched_tokens):
    engine = make_engine(make_decoder(), max_num_batched_tokens=max_num_batched_tokens)
    run_all(engine, [make_request(make_prompt(i, 5 + i), max_tokens=6) for i in range(4)])
    stats = engine.stats()
    assert stats.num_context_tokens == 5 + 6 + 7 + 8
    assert stats.num_generated_tokens == 4 * 6
    assert (stats.num_accepted, stats.num_completed, stats.num_cancelled, stats.num_failed) == (4, 4, 0, 0)
    assert stats.kernel_time_s > 0.0
    assert stats.overhead_ms_per_step > 0.0
    assert stats.kv_usage == 0.0
