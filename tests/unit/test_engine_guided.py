"""Guides in the engine beside everything else a request may ask for, and while their grammars are being compiled."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tandem.engine import AsyncEngine
from tandem.errors import Unsupported, from_wire
from tandem.types import FinishReason
from tests.factories import ScriptedDecoder, make_engine, make_request, run_all, run_one
from tests.guided_factories import END, detokenize, make_compiler, regex_guide, tokenize
from tests.unit.test_engine_async import Collector, assert_is_back_at_start

COMPILER = make_compiler()


def row(**wanted: float) -> list[float]:
    """Logits that like the named tokens; ``END`` is the end token."""
    logits = np.linspace(0.0, 0.1, END + 1)
    for text, value in wanted.items():
        logits[END if text == "END" else tokenize(text)[0]] = value
    return logits.tolist()


def ask(pattern: str, logits: list[float], **sampling):
    sampling.setdefault("end_id", END)
    engine = make_engine(ScriptedDecoder(logits), grammars=COMPILER)
    return run_one(engine, make_request(guide=regex_guide(pattern), **sampling))


def test_guide_when_complete_then_stops_at_once_without_a_step_for_the_end() -> None:
    decoder = ScriptedDecoder(row(z=9.0))
    engine = make_engine(decoder, grammars=COMPILER)
    answer = run_one(engine, make_request(guide=regex_guide("(a|b)"), end_id=END))
    assert detokenize(answer.tokens) in ("a", "b")
    assert answer.finish_reason is FinishReason.STOP
    assert decoder.num_forwards == 1


def test_guide_when_end_token_is_liked_most_then_waits_until_it_accepts() -> None:
    answer = ask("a{2}b*", row(END=9.0))
    assert (detokenize(answer.tokens), answer.finish_reason) == ("aa", FinishReason.STOP)


def test_guide_when_no_end_token_then_ends_where_complete() -> None:
    answer = ask("a{3}", row(), end_id=None)
    assert (detokenize(answer.tokens), answer.finish_reason) == ("aaa", FinishReason.STOP)


def test_guide_when_cut_by_max_tokens_then_length_and_a_prefix() -> None:
    answer = ask("ab(yes|no)[a-z]{9}", row(), max_tokens=4)
    assert answer.finish_reason is FinishReason.LENGTH
    assert len(answer.tokens) == 4
    assert COMPILER.compile(regex_guide("ab(yes|no)[a-z]{9}")).matcher().count_accepted(answer.tokens) == 4


def test_forced_run_when_longer_than_what_is_left_then_cut_at_max_tokens() -> None:
    answer = ask("(x|y)abcdefghi", row(), max_tokens=5)
    assert (len(answer.tokens), answer.finish_reason) == (5, FinishReason.LENGTH)


def test_min_tokens_when_grammar_can_go_on_then_holds_the_end_back() -> None:
    assert detokenize(ask("a+", row(END=9.0), min_tokens=3).tokens) == "aaa"


def test_min_tokens_when_grammar_is_complete_then_the_grammar_wins() -> None:
    answer = ask("(a|b)", row(), min_tokens=5)
    assert (len(answer.tokens), answer.finish_reason) == (1, FinishReason.STOP)


def test_bad_words_when_nothing_is_left_then_an_honest_error_and_others_go_on() -> None:
    engine = make_engine(ScriptedDecoder(row()), grammars=COMPILER)
    bad = tuple((token,) for token in (*tokenize("a"), *tokenize("b")))
    faulty = make_request(guide=regex_guide("(a|b)c"), end_id=END, bad_words=bad)
    fine = make_request(guide=regex_guide("(a|b)c"), end_id=END)
    answers = run_all(engine, [faulty, fine])
    error = from_wire(answers[faulty.request_id].error or "")
    assert error is not None
    assert (error.code, error.field) == ("invalid_value", "guided_decoding_guide")
    assert answers[faulty.request_id].tokens == []
    assert detokenize(answers[fine.request_id].tokens) in ("ac", "bc")


def test_bad_words_and_bias_when_something_is_left_then_both_hold() -> None:
    b = tokenize("b")[0]
    assert detokenize(ask("(a|b|c)", row(a=5.0), bad_words=(tuple(tokenize("a")),)).tokens) in ("b", "c")
    assert detokenize(ask("(a|b|c)", row(a=5.0), logit_bias=((b, 90.0),)).tokens) == "b"
    assert detokenize(ask("(a|b)z", row(), logit_bias=((tokenize("y")[0], 100.0),)).tokens)[1] == "z"


def test_stop_words_when_completed_by_a_forced_token_then_stop_there() -> None:
    answer = ask("(x|y)abcd", row(x=5.0), stop_words=((*tokenize("a"), *tokenize("b")),))
    assert (detokenize(answer.tokens), answer.finish_reason) == ("xab", FinishReason.STOP)


def test_engine_when_it_has_no_grammars_then_refuses_a_guide_by_name() -> None:
    with pytest.raises(Unsupported, match="guided_decoding_guide_type"):
        make_engine().prepare(make_request(guide=regex_guide("a")))


class GatedCompiler:
    """Compiles only when it is let go; what an engine calls of a GrammarCompiler."""

    def __init__(self) -> None:
        self._inner = make_compiler()
        self.gate = threading.Event()
        self.threads: list[threading.Thread] = []

    def compile(self, guide):
        return self._inner.compile(guide)

    def submit(self, guide, then) -> None:
        def run() -> None:
            assert self.gate.wait(20)
            self._inner.submit(guide, then)

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()


@pytest.fixture
def gated():
    compiler = GatedCompiler()
    engine = AsyncEngine(make_engine(ScriptedDecoder(row(q=9.0)), grammars=compiler))
    yield compiler, engine
    compiler.gate.set()
    for thread in compiler.threads:
        thread.join()
    engine.shutdown()


def test_slow_compile_when_others_wait_then_they_do_not(gated) -> None:
    compiler, engine = gated
    guided, free = Collector(), Collector()
    engine.submit(make_request(guide=regex_guide("(a|b)"), end_id=END), guided)
    engine.submit(make_request(max_tokens=3), free)
    assert free.wait().tokens == [tokenize("q")[0]] * 3
    assert guided.calls == []
    assert engine.stats().num_waiting == 1
    compiler.gate.set()
    assert guided.wait().finish_reason is FinishReason.STOP
    assert_is_back_at_start(engine)


def test_slow_compile_when_cancelled_then_ends_at_once_and_never_runs(gated) -> None:
    compiler, engine = gated
    guided, request = Collector(), make_request(guide=regex_guide("(a|b)"), end_id=END)
    engine.submit(request, guided)
    assert engine.cancel(request.request_id)
    assert guided.wait().finish_reason is FinishReason.CANCELLED
    assert not engine.cancel(request.request_id)
    assert_is_back_at_start(engine)
    compiler.gate.set()
    again = Collector()
    engine.submit(make_request(guide=regex_guide("(a|b)"), end_id=END), again)
    again.wait()
    assert_is_back_at_start(engine)
    assert engine.stats().num_accepted == 1


def test_faulty_guide_when_submitted_then_one_last_delta_with_the_error(gated) -> None:
    compiler, engine = gated
    compiler.gate.set()
    sink = Collector()
    engine.submit(make_request(guide=regex_guide("(a"), end_id=END), sink)
    answer = sink.wait()
    error = from_wire(answer.error or "")
    assert error is not None
    assert error.field == "guided_decoding_guide"
    assert_is_back_at_start(engine)


def test_shutdown_when_a_grammar_is_compiling_then_the_request_ends_with_an_error(gated) -> None:
    _, engine = gated
    sink = Collector()
    engine.submit(make_request(guide=regex_guide("(a|b)"), end_id=END), sink)
    engine.shutdown()
    assert sink.wait().finish_reason is FinishReason.ERROR
