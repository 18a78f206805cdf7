"""One request from decision to last chunk, over a fake engine port."""

from __future__ import annotations

import json
import math
import threading
from typing import Any

import pytest

from tandem.errors import EngineFailure, InvalidRequest, Overloaded
from tandem.orchestration.log_probs import LOG_PROB_FLOOR
from tandem.orchestration.port import RouterChunk
from tandem.types import FinishReason, Path, SamplingParams
from tests.text_factories import END
from tests.unit.orchestration_fakes import (
    BYTES_ONLY,
    MAX_SEQ_LEN,
    TOKENIZER,
    ScriptedPort,
    check_answer,
    ids_of,
    last_of,
    make_request,
    make_service,
    run,
    text_of,
)

STOP, LENGTH, CANCELLED = FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED
TEXT = "  the quick brown fox and the lazy dog"
WIDE = "🫠é漢🏳️‍🌈" * 3


@pytest.mark.parametrize("chunk", [1, 2, 7, 1000])
@pytest.mark.parametrize("merge_end", [False, True])
def test_streamed_text_equals_whole_text_with_equal_usage(chunk: int, merge_end: bool) -> None:
    port = ScriptedPort([ids_of(TEXT)], chunk=chunk, merge_end=merge_end)
    streamed = run(port, stream=True)
    assert port.calls[0][2] is True
    whole = run(port, stream=False)
    assert port.calls[1][2] is False
    assert text_of(streamed) == text_of(whole) == TEXT
    assert last_of(streamed) == last_of(whole) == (STOP, len(ids_of(TEXT)))
    assert len(whole) == 1
    assert port.stops == []


def test_stream_gives_one_chunk_per_delta_and_an_empty_last_one() -> None:
    chunks = run(ScriptedPort([ids_of("the fox")]), stream=True)
    assert [chunk.text_output for chunk in chunks] == [TOKENIZER.piece(i).decode() for i in ids_of("the fox")] + [""]
    assert [chunk.num_output_tokens for chunk in chunks[:-1]] == list(range(1, len(chunks)))


@pytest.mark.parametrize("stream", [True, False])
def test_characters_of_several_tokens_arrive_whole(stream: bool) -> None:
    ids = ids_of(WIDE, BYTES_ONLY)
    chunks = run(ScriptedPort([ids]), BYTES_ONLY, stream=stream, max_tokens=len(ids), prompt_ids=(5,))
    limit = MAX_SEQ_LEN - 1
    assert len(ids) > limit, "the answer is cut inside the text by the context"
    expected = BYTES_ONLY.decode(ids[:limit])
    assert text_of(chunks) == expected
    assert all("\ufffd" not in chunk.text_output for chunk in chunks[:-1])
    assert last_of(chunks) == (LENGTH, limit)


def test_character_cut_by_the_limit_becomes_a_replacement_in_the_last_chunk_only() -> None:
    ids = ids_of("a🫠", BYTES_ONLY)
    chunks = run(ScriptedPort([ids]), BYTES_ONLY, stream=True, max_tokens=len(ids) - 1)
    assert [chunk.text_output for chunk in chunks] == ["a", "\ufffd"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("width", [1, 6, 11])
def test_stop_string_across_token_borders_cuts_before_it_with_equal_usage(stream: bool, chunk: int, width: int) -> None:
    ids = ids_of(TEXT)
    for start in range(len(TEXT) - width):
        stop_string = TEXT[start : start + width]
        port = ScriptedPort([ids], chunk=chunk)
        chunks = run(port, stream=stream, stop_words=(stop_string,))
        expected = TEXT[: TEXT.index(stop_string)]
        assert text_of(chunks) == expected
        completing = next(n for n in range(len(ids) + 1) if stop_string in TOKENIZER.decode(ids[:n]))
        assert last_of(chunks) == (STOP, completing)


@pytest.mark.parametrize("stream", [True, False])
def test_stop_string_stops_the_engine(stream: bool) -> None:
    port = ScriptedPort([ids_of(TEXT)])
    run(port, stream=stream, stop_words=("quick",))
    (stopped_engine, child_id), *more = port.stops
    assert (stopped_engine, child_id, more) == ("fast_int4", port.calls[0][1].request_id, [])
    assert port.num_delivered < len(ids_of(TEXT))


def test_text_held_back_for_a_stop_string_is_given_at_the_end() -> None:
    chunks = run(ScriptedPort([ids_of("the lazy")]), stream=True, stop_words=("lazy dog",))
    assert text_of(chunks) == "the lazy"
    assert last_of(chunks)[0] is STOP


def test_stop_string_of_one_sequence_leaves_the_others_running() -> None:
    scripts = [ids_of("the quick brown fox"), ids_of("the lazy dog and the brown fox"), ids_of("brown and quick")]
    port = ScriptedPort(scripts)
    chunks = run(port, stream=True, num_return_sequences=3, stop_words=("quick",))
    assert [text_of(chunks, index) for index in range(3)] == ["the ", "the lazy dog and the brown fox", "brown and "]
    assert [last_of(chunks, index)[0] for index in range(3)] == [STOP, STOP, STOP]
    assert port.stops == [], "the engine ends by itself when its last sequence ends"


def test_engine_is_stopped_when_the_last_running_sequence_meets_a_stop_string() -> None:
    port = ScriptedPort([ids_of("quick fox"), ids_of("the lazy dog quick and more of it")])
    run(port, stream=True, num_return_sequences=2, stop_words=("quick",))
    assert len(port.stops) == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("merge_end", [True, False])
def test_three_sequences_end_each_for_its_own_reason(stream: bool, merge_end: bool) -> None:
    scripts = [ids_of("the fox"), ids_of("the quick brown fox and the lazy dog"), ids_of("")]
    port = ScriptedPort(scripts, merge_end=merge_end)
    chunks = run(port, stream=stream, num_return_sequences=3, max_tokens=5)
    assert [last_of(chunks, index) for index in range(3)] == [(STOP, len(scripts[0])), (LENGTH, 5), (STOP, 0)]
    assert [text_of(chunks, index) for index in range(3)] == ["the fox", TOKENIZER.decode(scripts[1][:5]), ""]


@pytest.mark.parametrize("stream", [True, False])
def test_end_token_right_after_the_limit_is_length(stream: bool) -> None:
    ids = ids_of("the fox")
    assert last_of(run(ScriptedPort([ids]), stream=stream, max_tokens=len(ids))) == (LENGTH, len(ids))
    assert last_of(run(ScriptedPort([ids]), stream=stream, max_tokens=len(ids) + 1)) == (STOP, len(ids))


@pytest.mark.parametrize("stream", [True, False])
def test_one_token_is_length_unless_the_end_token_comes_first(stream: bool) -> None:
    assert last_of(run(ScriptedPort([ids_of("the fox")]), stream=stream, max_tokens=1)) == (LENGTH, 1)
    assert last_of(run(ScriptedPort([()]), stream=stream, max_tokens=1)) == (STOP, 0)


def test_all_sampling_reaches_the_engine() -> None:
    port = ScriptedPort([ids_of("the fox")] * 2)
    chunks = run(
        port,
        max_tokens=9,
        min_tokens=2,
        top_k=11,
        top_p=0.5,
        temperature=0.75,
        repetition_penalty=1.5,
        presence_penalty=-1.0,
        frequency_penalty=2.0,
        seed=2**64 - 1,
        num_return_sequences=2,
        return_log_probs=True,
        min_p=0.25,
        top_logprobs=1,
        logit_bias_ids=(3, 4),
        logit_bias_values=(-100.0, 1.5),
        bad_words=("fox",),
        end_id=0,
    )
    engine, request, _ = port.calls[0]
    assert (engine, request.prompt_ids, len(chunks)) == ("fast_int4", (5, 6, 7), 2)
    assert request.sampling == SamplingParams(
        max_tokens=9,
        min_tokens=2,
        temperature=0.75,
        top_k=11,
        top_p=0.5,
        min_p=0.25,
        seed=2**64 - 1,
        repetition_penalty=1.5,
        presence_penalty=-1.0,
        frequency_penalty=2.0,
        logit_bias=((3, -100.0), (4, 1.5)),
        end_id=0,
        bad_words=(ids_of("fox"), ids_of(" fox")),
        num_return_sequences=2,
        return_log_probs=True,
        top_logprobs=1,
    )


def test_child_ids_are_unique_and_name_request_and_row() -> None:
    port = ScriptedPort([ids_of("the fox")])
    service = make_service(port)
    for _ in range(2):
        service.handle(make_request(request_id="abc", batch_index=3), lambda chunk: None)
    service.handle(make_request(request_id=""), lambda chunk: None)
    first, second, nameless = (request.request_id for _, request, _ in port.calls)
    assert first != second
    assert first.startswith("abc.3.")
    assert len(first) == len("abc.3.") + 8
    assert nameless.startswith("request.0.")


def test_decision_stands_in_every_chunk() -> None:
    chunks = run(ScriptedPort([ids_of("the fox")]), text="Prove it", stream=True, batch_index=2)
    assert {(chunk.path, chunk.engine, chunk.batch_index, chunk.num_input_tokens) for chunk in chunks} == {
        (Path.SLOW, "slow", 2, 3)
    }
    assert chunks[0].decision.startswith("rules:intent=proof -> slow/slow (")


# --- log-probabilities --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log_prob", [-0.5, float("-inf"), float("nan"), -1e30, 1e-7])
def test_log_probs_are_strict_json_and_finite(log_prob: float) -> None:
    chunks = run(ScriptedPort([ids_of("the fox")], log_prob=log_prob), stream=True, return_log_probs=True, top_logprobs=2)
    for chunk in chunks:
        content = json.loads(chunk.log_probs_content, parse_constant=pytest.fail)
        assert [entry["logprob"] for entry in content] == list(chunk.output_log_probs)
        for entry in content:
            assert LOG_PROB_FLOOR <= entry["logprob"] <= 0
            assert "".join(entry["token"]) == bytes(entry["bytes"]).decode()
            assert [top["logprob"] for top in entry["top_logprobs"]] == [entry["logprob"], LOG_PROB_FLOOR]


def test_log_probs_are_absent_unless_asked_for() -> None:
    for chunk in run(ScriptedPort([ids_of("the fox")]), stream=True):
        assert (chunk.output_log_probs, chunk.log_probs_content) == ((), "")


def test_log_probs_of_partial_characters_give_their_bytes() -> None:
    (chunk,) = run(ScriptedPort([ids_of("é", BYTES_ONLY)]), BYTES_ONLY, return_log_probs=True)
    content = json.loads(chunk.log_probs_content)
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == chunk.text_output == "é"
    assert [entry["top_logprobs"] for entry in content] == [[], []]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("stop_string", ["quick", " quick", "uic", "k brown", "own f"])
def test_tokens_after_a_stop_string_are_counted_but_not_reported(stream: bool, stop_string: str) -> None:
    chunks = run(ScriptedPort([ids_of(TEXT)], chunk=4), stream=stream, stop_words=(stop_string,), return_log_probs=True)
    content = [entry for chunk in chunks for entry in json.loads(chunk.log_probs_content)]
    reported = "".join(entry["token"] for entry in content)
    text = text_of(chunks)
    assert reported.startswith(text)
    before_last = reported[: -len(content[-1]["token"])]
    assert not before_last.startswith(text), "only the last reported token may reach past the cut"
    assert sum(len(chunk.output_log_probs) for chunk in chunks) == len(content) <= last_of(chunks)[1]


def test_reports_come_with_the_text_they_belong_to() -> None:
    chunks = run(ScriptedPort([ids_of("the lazy dog")]), stream=True, stop_words=("lazy cat",), return_log_probs=True)
    shown = reported = ""
    for chunk in chunks:
        shown += chunk.text_output
        reported += "".join(entry["token"] for entry in json.loads(chunk.log_probs_content))
        assert reported.startswith(shown)
    assert reported == shown == "the lazy dog"


def test_missing_log_probs_are_an_engine_failure() -> None:
    class Forgetful(ScriptedPort):
        def _delta(self, *args: Any, **options: Any) -> Any:
            delta = super()._delta(*args, **options)
            return type(delta)(delta.request_id, delta.sequence_index, delta.token_ids, is_last=delta.is_last)

    with pytest.raises(EngineFailure, match="log-probabilities"):
        run(Forgetful([ids_of("the fox")]), return_log_probs=True)


# --- cancel -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_cancel_before_the_flow_runs_calls_no_engine(stream: bool) -> None:
    port = ScriptedPort([ids_of("the fox")] * 2)
    service = make_service(port)
    flow = service.open(make_request(stream=stream, num_return_sequences=2))
    assert service.stop("q1") == 1
    chunks: list[RouterChunk] = []
    service.run(flow, chunks.append)
    check_answer(chunks)
    assert [last_of(chunks, index) for index in range(2)] == [(CANCELLED, 0)] * 2
    assert (port.calls, port.stops, service.num_running) == ([], [], 0)


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("num_return_sequences", [1, 3])
def test_cancel_while_streaming_ends_with_what_was_shown(at: int, num_return_sequences: int) -> None:
    port = ScriptedPort([ids_of(TEXT)] * num_return_sequences)
    service = make_service(port)

    def cancel(number: int) -> None:
        if number == at:
            thread = threading.Thread(target=service.stop, args=("q1",))
            thread.start()
            thread.join()

    port.before_delta = cancel
    chunks: list[RouterChunk] = []
    service.handle(make_request(stream=True, num_return_sequences=num_return_sequences), chunks.append)
    check_answer(chunks)
    assert port.is_drained
    assert port.num_delivered == at
    assert [last_of(chunks, index)[0] for index in range(num_return_sequences)] == [CANCELLED] * num_return_sequences
    assert sum(last_of(chunks, index)[1] for index in range(num_return_sequences)) == at
    assert set(port.stops) == {("fast_int4", port.calls[0][1].request_id)}


def test_cancel_that_the_engine_did_not_hear_is_repeated_at_the_next_delta() -> None:
    port = ScriptedPort([ids_of(TEXT)])
    service = make_service(port)

    def lose_the_first_stop(number: int) -> None:
        if number == 1:
            service.stop("q1")
            port.stops.clear()  # as if it had come before the engine knew the id

    port.before_delta = lose_the_first_stop
    chunks: list[RouterChunk] = []
    service.handle(make_request(stream=True), chunks.append)
    check_answer(chunks)
    assert last_of(chunks) == (CANCELLED, 2)
    assert port.num_delivered == 2
    assert len(port.stops) == 1


def test_cancel_that_the_engine_answers_with_nothing_more_still_ends_every_sequence() -> None:
    class Curt(ScriptedPort):
        def generate(self, engine: str, request: Any, *, streaming: bool) -> Any:
            yield next(super().generate(engine, request, streaming=streaming))
            service.stop("q1")

    service = make_service(Curt([ids_of(TEXT)] * 2))
    chunks: list[RouterChunk] = []
    service.handle(make_request(stream=True, num_return_sequences=2), chunks.append)
    check_answer(chunks)
    assert [last_of(chunks, index) for index in range(2)] == [(CANCELLED, 1), (CANCELLED, 0)]


def test_cancel_of_a_whole_answer_gives_the_part_that_is_there() -> None:
    port = ScriptedPort([ids_of(TEXT)])
    service = make_service(port)
    port.before_delta = lambda number: service.stop("q1") and None
    chunks: list[RouterChunk] = []
    service.handle(make_request(stream=False), chunks.append)
    assert [last_of(chunks), len(chunks)] == [(CANCELLED, 0), 1]


def test_cancel_after_the_end_changes_nothing() -> None:
    port = ScriptedPort([ids_of("the fox")])
    service = make_service(port)
    service.handle(make_request(), lambda chunk: None)
    assert service.stop("q1") == 0
    assert port.stops == []


def test_cancel_of_one_flow_by_its_handle_leaves_its_sibling_row_alone() -> None:
    port = ScriptedPort([ids_of("the fox")])
    service = make_service(port)
    first, second = (service.open(make_request(batch_index=row, stream=True)) for row in range(2))
    first.cancel()
    assert (first.is_cancelled, second.is_cancelled) == (True, False)
    chunks: list[RouterChunk] = []
    service.run(first, chunks.append)
    service.run(second, chunks.append)
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == [CANCELLED, STOP]


# --- failures -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [EngineFailure("the engine died"), Overloaded("queue full")])
@pytest.mark.parametrize("at", [0, 3])
def test_engine_error_passes_through_and_what_was_shown_stays(error: Exception, at: int) -> None:
    def fail(number: int) -> None:
        if number == at:
            raise error

    port = ScriptedPort([ids_of(TEXT)], before_delta=fail)
    service = make_service(port)
    chunks: list[RouterChunk] = []
    with pytest.raises(type(error)) as caught:
        service.handle(make_request(stream=True), chunks.append)
    assert caught.value is error
    assert len(chunks) == at
    assert all(chunk.finish_reason is None for chunk in chunks)
    assert service.num_running == 0


def test_stream_that_breaks_off_is_an_engine_failure() -> None:
    class BreaksOff(ScriptedPort):
        def _delta(self, *args: Any, **options: Any) -> Any:
            return super()._delta(*args, **{**options, "is_last": False})

    port = BreaksOff([ids_of("the fox")], merge_end=True)
    with pytest.raises(EngineFailure, match="without a last part"):
        run(port, stream=True)
    assert len(port.stops) == 1


def test_sequence_that_was_not_asked_for_is_an_engine_failure() -> None:
    class Confused(ScriptedPort):
        def _delta(self, request: Any, index: int, *args: Any, **options: Any) -> Any:
            return super()._delta(request, index + 1, *args, **options)

    with pytest.raises(EngineFailure, match="sequence 1"):
        run(Confused([ids_of("the fox")]), stream=True)


def test_token_outside_the_vocabulary_is_an_engine_failure() -> None:
    with pytest.raises(EngineFailure, match=str(TOKENIZER.vocab_size)):
        run(ScriptedPort([(TOKENIZER.vocab_size,)]), stream=True)


def test_failure_of_the_receiver_stops_the_engine() -> None:
    port = ScriptedPort([ids_of(TEXT)])

    def broken(chunk: RouterChunk) -> None:
        raise RuntimeError("our bug")

    with pytest.raises(RuntimeError, match="our bug"):
        make_service(port).handle(make_request(stream=True), broken)
    assert len(port.stops) == 1


def test_special_tokens_in_the_answer_are_counted_but_not_shown() -> None:
    ids = (*ids_of("the fox"), END)
    chunks = run(ScriptedPort([ids]), stream=True, ignore_eos=True, max_tokens=len(ids))
    assert (text_of(chunks), last_of(chunks)) == ("the fox", (LENGTH, len(ids)))


def test_floor_of_log_probs_is_a_finite_number_below_every_real_one() -> None:
    assert math.isfinite(LOG_PROB_FLOOR)
    assert LOG_PROB_FLOOR < -1000


def test_bad_request_emits_nothing_and_calls_no_engine() -> None:
    port = ScriptedPort([ids_of("the fox")])
    service = make_service(port)
    with pytest.raises(InvalidRequest):
        service.handle(make_request(stream=True, max_tokens=0), pytest.fail)
    assert (port.calls, port.stops, service.num_running) == ([], [], 0)
