"""Deltas to responses: what is joined, what stays apart, and the sender that joins."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from tandem.errors import InvalidRequest
from tandem.protocol import ENGINE
from tandem.triton.engine_request import EngineCall, ResponseOptions
from tandem.triton.engine_response import RowContext, RowEncoder, check_outputs
from tandem.triton.sender import SenderThread
from tandem.types import CacheHints, FinishReason, RequestId, SamplingParams, SequenceDelta

ALL_OUTPUTS = frozenset(spec.name for spec in ENGINE.outputs)


def encoder(*, streaming: bool = True, **sampling) -> RowEncoder:
    options = ResponseOptions(streaming, None, False, False, False)
    call = EngineCall((1, 2, 3), SamplingParams(**{"max_tokens": 8, **sampling}), options, CacheHints())
    return RowEncoder(call, RowContext(None, ALL_OUTPUTS, True, 4))


def delta(*tokens: int, index: int = 0, reason: FinishReason | None = None, is_last: bool = False) -> SequenceDelta:
    entropies = tuple(token / 10 for token in tokens)
    log_probs = tuple(-float(token) for token in tokens)
    return SequenceDelta(RequestId("r"), index, tokens, entropies, log_probs, (), -float(sum(tokens)), reason, is_last)


def shape_of(responses) -> list[tuple[int, list[int]]]:
    """(sequence, tokens) of each response."""
    return [
        (int(r["sequence_index"].item()) if "sequence_index" in r else 0, r["output_ids"].reshape(-1).tolist()) for r in responses
    ]


def test_deltas_when_they_wait_together_then_one_response_per_sequence():
    row = encoder(num_return_sequences=2, temperature=1.0)
    responses = row.take([delta(5), delta(7, index=1), delta(6), delta(8, index=1)])
    assert shape_of(responses) == [(0, [5, 6]), (1, [7, 8])]


def test_end_token_when_it_waits_with_tokens_then_still_a_response_of_its_own():
    """The router tells the end of a sequence by the response without tokens."""
    row = encoder(num_return_sequences=2, temperature=1.0)
    responses = row.take([delta(5), delta(reason=FinishReason.STOP), delta(7, index=1)])
    assert shape_of(responses) == [(0, [5]), (0, []), (1, [7])]


def test_last_delta_when_another_sequence_spoke_before_then_its_response_is_the_last():
    row = encoder(num_return_sequences=2, temperature=1.0)
    responses = row.take([delta(7, index=1), delta(5), delta(index=1, reason=FinishReason.STOP, is_last=True)])
    assert shape_of(responses) == [(0, [5]), (1, [7]), (1, [])]


def test_log_probs_when_joined_then_all_so_far_and_entropies_of_the_new_only():
    row = encoder(return_log_probs=True)
    row.take([delta(1)])
    (response,) = row.take([delta(2), delta(3)])
    assert response["output_log_probs"].tolist() == [[[-1.0, -2.0, -3.0]]]
    assert response["output_entropy"].round(3).tolist() == [[[pytest.approx(0.2), pytest.approx(0.3)]]]
    assert response["cum_log_probs"].tolist() == [[-3.0]]


def test_whole_when_cancelled_then_each_sequence_gives_what_it_has_once():
    row = encoder(streaming=False, num_return_sequences=3, temperature=1.0)
    assert row.take([delta(5), delta(6, index=1), delta(7, index=2)]) == []
    ended = row.take([delta(9, index=1, reason=FinishReason.LENGTH)])
    rest = row.take([delta(reason=FinishReason.CANCELLED, is_last=True)])
    assert shape_of(ended) == [(1, [6, 9])]
    assert shape_of(rest) == [(0, [5]), (2, [7])]


@pytest.mark.parametrize("requested", [frozenset(), frozenset(("output_ids",)), frozenset(("sequence_length",))])
def test_outputs_when_one_that_is_needed_is_missing_then_refused(requested):
    with pytest.raises(InvalidRequest, match="output"):
        check_outputs(requested)


class Receiver:
    """Blocks in its first ``take`` until let go, so that deltas pile up."""

    def __init__(self) -> None:
        self.entered, self.gate = threading.Event(), threading.Event()
        self.taken: list[list[int]] = []

    def take(self, deltas: Sequence[SequenceDelta]) -> None:
        self.taken.append([token for each in deltas for token in each.token_ids])
        self.entered.set()
        assert self.gate.wait(10)

    def abandon(self, error: Exception) -> None:
        raise AssertionError("not expected") from error


def test_sender_when_deltas_pile_up_then_handed_over_together_and_in_order():
    sender, receiver, other = SenderThread("test-sender"), Receiver(), Receiver()
    other.gate.set()
    sender.put(receiver, [delta(1)])
    assert receiver.entered.wait(10)
    for token in (2, 3, 4):
        sender.put(receiver, [delta(token)])
        sender.put(other, [delta(token * 10)])
    receiver.gate.set()
    sender.close()
    assert receiver.taken == [[1], [2, 3, 4]]
    assert other.taken == [[20, 30, 40]]


def test_sender_when_a_receiver_cannot_even_be_abandoned_then_the_others_go_on(caplog):
    class Broken:
        def take(self, deltas):
            raise ValueError("take")

        def abandon(self, error):
            raise ValueError("abandon")

    sender, good = SenderThread("test-sender"), Receiver()
    good.gate.set()
    sender.put(Broken(), [delta(1)])
    sender.put(good, [delta(2)])
    sender.close()
    assert good.taken == [[2]]
    assert len(caplog.records) == 2
