"""The ticket queue, the engine's SLO order over it, and what a decision costs."""

from time import perf_counter

import pytest

from loadtest.simulate import Arrival, EngineLimits, SimulatedEngine, StepTime
from tandem.engine.waiting import FirstComeFirstServed, SloOrder
from tandem.errors import SetupError
from tandem.scheduling.ticket_queue import TicketQueue
from tests.factories import make_decoder, make_engine, make_prompt, make_request, run_all

STEP_TIME = StepTime(10.0, 2.0, 2.0)
LIMITS = EngineLimits(max_num_seqs=4, max_num_batched_tokens=32)


def slo_order():
    return SloOrder(slo_ttft_ms=2000, tokens_per_step=32)


def test_queue_when_one_steps_back_then_others_by_arrival_until_it_presses():
    queue = TicketQueue(max_wait_ratio=2.0)
    works = {"a": 10, "b": 40, "c": 5}
    tickets = {name: queue.arrive(name, serial, work, target_work=20) for serial, (name, work) in enumerate(works.items())}
    assert [name for name, ticket in tickets.items() if ticket.is_deferred] == ["b"]
    order = []
    while (name := queue.peek(1)) is not None:
        order.append(name)
        queue.remove(name)
        queue.serve(tickets[name], works[name])
    assert order == ["a", "c", "b"]
    assert queue.backlog == 0
    # It is due when 20 units more are served, and brings 10: others may have 10 before it.
    late = queue.arrive("late", 3, 10, target_work=5)
    assert late.is_deferred
    tickets = {number: queue.arrive(number, 4 + number, 3) for number in range(8)}
    for number in (0, 1, 2):
        assert queue.peek(1) == number
        queue.remove(number)
        queue.serve(tickets[number], 3)
    assert queue.peek(1) == 3
    assert queue.peek(2) == "late"
    assert queue.remove("late")
    assert not queue.remove("late")


def test_queue_when_item_comes_back_then_old_entries_do_not_count():
    queue = TicketQueue(max_wait_ratio=3.0)
    ticket = queue.arrive("a", 0, 10)
    queue.arrive("b", 1, 10)
    queue.remove("a")
    queue.serve(ticket, 10)
    assert queue.peek(1) == "b"
    queue.come_back("a", ticket, 12, has_answered=True)
    assert (queue.peek(1), len(queue), queue.backlog) == ("a", 2, 22)
    queue.remove("a")
    queue.forget(ticket)
    assert (queue.peek(1), queue.backlog) == ("b", 10)


def test_queue_when_many_are_taken_out_of_the_middle_then_memory_follows():
    queue = TicketQueue(max_wait_ratio=3.0)
    for number in range(5000):
        ticket = queue.arrive(number, number, 1)
        if number >= 10:
            queue.remove(number)
            queue.forget(ticket)
    assert len(queue._by_due) < 200
    assert len(queue._rule._largest) < 200
    assert queue.peek(1) == 0
    assert len(queue._bound._by_due) < 200


def test_slo_order_when_a_long_prompt_waits_then_a_short_one_overtakes_it():
    arrivals = [Arrival(0.0, 3000, 5, 100), Arrival(0.1, 3000, 5, 100), Arrival(0.2, 20, 5, 100)]
    fcfs = SimulatedEngine(LIMITS, STEP_TIME, FirstComeFirstServed()).run(arrivals)
    slo = SimulatedEngine(LIMITS, STEP_TIME, slo_order()).run(arrivals)
    assert slo[0].ttft_s < 1.05 * fcfs[0].ttft_s  # it found an empty engine, so nobody may overtake it
    assert slo[2].ttft_s < 0.6 * fcfs[2].ttft_s
    assert slo[1].ttft_s < 1.05 * fcfs[1].ttft_s


def test_slo_order_when_a_long_prompt_is_half_computed_then_a_short_one_still_overtakes_it():
    arrivals = [Arrival(0.0, 1000, 5, 100), Arrival(0.1, 3000, 5, 100), Arrival(4.0, 20, 5, 100)]
    fcfs = SimulatedEngine(LIMITS, STEP_TIME, FirstComeFirstServed()).run(arrivals)
    slo = SimulatedEngine(LIMITS, STEP_TIME, slo_order()).run(arrivals)
    assert slo[1].start_s < 4.0
    assert slo[2].ttft_s < 0.2 < fcfs[2].ttft_s


def test_slo_order_when_short_prompts_never_stop_coming_then_the_long_one_waits_at_most_three_times():
    arrivals = [Arrival(0.0, 3000, 2, 100), Arrival(0.01, 4000, 2, 100)]
    arrivals += [Arrival(0.1 + 0.1 * number, 40, 2, 100) for number in range(2000)]
    fcfs = SimulatedEngine(LIMITS, STEP_TIME, FirstComeFirstServed()).run(arrivals)
    slo = SimulatedEngine(LIMITS, STEP_TIME, slo_order()).run(arrivals)
    assert max(ours.ttft_s / theirs.ttft_s for ours, theirs in zip(slo, fcfs, strict=True)) <= 3.0


@pytest.mark.parametrize("num_blocks", [13, 20, 64])
def test_greedy_tokens_when_policy_changes_then_unchanged(num_blocks):
    prompts = [make_prompt(number, length) for number, length in enumerate((33, 1, 21, 3, 13, 4, 8, 5))]
    tokens = {}
    for policy in ("fcfs", "slo"):
        requests = [make_request(prompt, max_tokens=20) for prompt in prompts]
        engine = make_engine(make_decoder(num_blocks=num_blocks), max_num_seqs=8, scheduling_policy=policy)
        answers = run_all(engine, requests)
        tokens[policy] = [answers[request.request_id].tokens for request in requests]
    assert tokens["slo"] == tokens["fcfs"]


def test_choices_when_policy_is_slo_and_pool_is_short_then_unchanged():
    tokens = []
    for policy, num_blocks in (("fcfs", 200), ("slo", 30)):
        requests = [
            make_request(make_prompt(n, 5 + n), max_tokens=12, num_return_sequences=3, temperature=1.0, seed=n) for n in range(4)
        ]
        engine = make_engine(make_decoder(num_blocks=num_blocks), max_num_seqs=6, scheduling_policy=policy)
        answers = run_all(engine, requests)
        tokens.append([answers[request.request_id].token_ids for request in requests])
    assert tokens[0] == tokens[1]


def test_config_when_policy_is_unknown_then_named():
    with pytest.raises(SetupError, match="scheduling_policy"):
        make_engine(scheduling_policy="lifo")


def test_decision_when_queue_is_ten_times_longer_then_not_ten_times_dearer():
    """The figures are in `tandem bench schedule`; this only fails when the cost grows with the number waiting."""
    costs = []
    for num_waiting in (500, 5000):
        engine = SimulatedEngine(EngineLimits(max_num_seqs=8), STEP_TIME, slo_order())
        engine.run([])
        for served in engine.fill([Arrival(0.0, 20 + number % 900, 3, 100) for number in range(num_waiting)]):
            assert served.start_s < 0.0
        started = perf_counter()
        for _ in range(200):
            engine.step()
        costs.append(perf_counter() - started)
    assert costs[1] < 5 * costs[0]
