"""The theorem of tandem.scheduling.wait_bound, against a server with random arrivals, work and orders."""

from hypothesis import given
from hypothesis import strategies as st

from tandem.scheduling.wait_bound import WaitBound

ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 30),  # time since the arrival before it
        st.integers(1, 40),  # work
        st.integers(-1000, 1000),  # key: any order at all, a hostile one too
    ),
    min_size=1,
    max_size=60,
)
RATIOS = st.sampled_from([1.0, 1.5, 2.0, 3.0])


def serve(arrivals, ratio, piece):
    """One unit of time is one unit of work, served in pieces by key, unless somebody is pressing. Returns (at, end) per request."""
    bound = WaitBound(ratio)
    tickets, ends, at, now, position = {}, {}, [], 0, 0
    for gap, _, _ in arrivals:
        at.append((at[-1] if at else 0) + gap)
    while len(ends) < len(arrivals):
        if not tickets:
            now = max(now, at[position])
        while position < len(arrivals) and at[position] <= now:
            tickets[position] = bound.arrive(position, arrivals[position][1])
            position += 1
        pressing = [number for number in tickets if bound.is_pressing(tickets[number], piece)]
        if pressing:
            number = min(pressing, key=lambda other: (tickets[other].due, other))
        else:
            number = min(tickets, key=lambda other: arrivals[other][2])
        done = int(min(piece, tickets[number].work_left))
        bound.serve(tickets[number], done)
        now += done
        if tickets[number].work_left == 0:
            ends[number] = now
            del tickets[number]
    assert bound.backlog == 0
    return at, ends


def first_come_first_served(arrivals):
    now, at, ends = 0, 0, []
    for gap, work, _ in arrivals:
        at += gap
        now = max(now, at) + work
        ends.append(now)
    return ends


@given(ARRIVALS, RATIOS)
def test_wait_when_order_is_hostile_then_within_the_ratio(arrivals, ratio):
    at, ends = serve(arrivals, ratio, piece=1)
    for number, fcfs_end in enumerate(first_come_first_served(arrivals)):
        assert ends[number] - at[number] <= ratio * (fcfs_end - at[number])


@given(ARRIVALS, RATIOS, st.integers(2, 40))
def test_wait_when_server_works_in_pieces_then_one_piece_is_added(arrivals, ratio, piece):
    at, ends = serve(arrivals, ratio, piece)
    for number, fcfs_end in enumerate(first_come_first_served(arrivals)):
        # Whoever came while a piece ran is seen when it ends.
        assert ends[number] - at[number] <= ratio * (fcfs_end - at[number]) + piece


@given(ARRIVALS)
def test_pressing_when_ratio_is_infinite_then_never(arrivals):
    bound = WaitBound(float("inf"))
    tickets = [bound.arrive(number, work) for number, (_, work, _) in enumerate(arrivals)]
    for ticket in reversed(tickets):
        assert not bound.is_pressing(ticket, 1000.0)
        bound.serve(ticket, 100.0)
    assert bound.backlog == 0
