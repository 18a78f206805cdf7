"""The theorem of tandem.scheduling.aging, against a server with random arrivals, work and keys."""

from hypothesis import given
from hypothesis import strategies as st

from tandem.scheduling.aging import AgingClock
from tandem.scheduling.ticket_queue import TicketQueue

ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 30),  # time since the arrival before it
        st.integers(1, 40),  # work
        st.integers(-1000, 1000),  # key: any order at all, a hostile one too
    ),
    min_size=1,
    max_size=60,
)


def serve(arrivals, piece):
    """One unit of time is one unit of work, served in pieces; the order may change after each. Returns (start, end) per request."""
    clock = AgingClock()
    queue, tickets, starts, ends = TicketQueue(clock), {}, {}, {}
    at, now, position = [], 0, 0
    for gap, _, _ in arrivals:
        at.append((at[-1] if at else 0) + gap)
    while len(ends) < len(arrivals):
        if not tickets and at[position] > now:
            now = at[position]
        while position < len(arrivals) and at[position] <= now:
            _, work, key = arrivals[position]
            tickets[position] = clock.arrive(position, work, key)
            queue.add(position, tickets[position])
            position += 1
        item = queue.peek()
        ticket = tickets[item]
        assert clock.rank(ticket) == min(clock.rank(other) for other in tickets.values())
        starts.setdefault(item, now)
        done = int(min(piece, ticket.work_left))
        clock.serve(ticket, done)
        now += done
        if ticket.work_left == 0:
            ends[item] = now
            queue.remove(item)
            del tickets[item]
    assert clock.backlog == 0
    return at, starts, ends


def first_come_first_served(arrivals):
    now, at, starts, ends = 0, 0, {}, {}
    for number, (gap, work, _) in enumerate(arrivals):
        at += gap
        now = starts[number] = max(now, at)
        now = ends[number] = now + work
    return starts, ends


@given(ARRIVALS)
def test_wait_when_order_is_hostile_then_within_three_times_fcfs(arrivals):
    at, starts, ends = serve(arrivals, piece=1)
    fcfs_starts, fcfs_ends = first_come_first_served(arrivals)
    for number in range(len(arrivals)):
        assert starts[number] - at[number] <= 3 * (fcfs_starts[number] - at[number])
        assert ends[number] - at[number] <= 3 * (fcfs_ends[number] - at[number])


@given(ARRIVALS, st.integers(2, 40))
def test_start_when_server_works_in_pieces_then_two_pieces_are_added(arrivals, piece):
    at, starts, _ = serve(arrivals, piece)
    fcfs_starts, _ = first_come_first_served(arrivals)
    for number in range(len(arrivals)):
        # The piece that runs at the arrival, and the one that reaches the promotion.
        assert starts[number] - at[number] <= 3 * (fcfs_starts[number] - at[number]) + 2 * piece
