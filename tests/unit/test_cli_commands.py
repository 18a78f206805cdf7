"""The command line: chat, status, bench; exit codes and one-sentence errors."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator

import pytest

from tandem.errors import EngineFailure, SetupError
from tandem_cli.main import main
from tandem_cli.status import summarize
from tests.unit.gateway_fakes import FakeBackend, RunningGateway, fails, running_gateway

ENGINE_METRICS = """\
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="slow",version="1",request_type="waiting"} 3
nv_trt_llm_request_metrics{model="slow",version="1",request_type="scheduled"} 2
# TYPE nv_trt_llm_kv_cache_block_metrics gauge
nv_trt_llm_kv_cache_block_metrics{model="slow",version="1",kv_cache_block_type="used"} 5
"""


@pytest.fixture(name="gateway", scope="module")
def _gateway() -> Iterator[RunningGateway]:
    with running_gateway(FakeBackend(metrics=ENGINE_METRICS)) as gateway:
        yield gateway


def test_chat_when_given_a_prompt_then_prints_answer_and_path(gateway: RunningGateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.backend.reset()
    sampling = ["--max-tokens", "5", "--seed", "3", "--temperature", "0"]
    route = ["--model", "tandem-slow", "--system", "be short", "--task", "code"]
    assert main(["chat", "hi", "--url", gateway.url, *sampling, *route]) == 0
    shown = capsys.readouterr()
    assert shown.out == "Hello world\n"
    assert "fast path (fast_int4) | rule: short prompt, 0.1 ms | 2 tokens, stop" in " ".join(shown.err.split())
    request = gateway.backend.requests[-1]
    assert (request.sampling.max_tokens, request.sampling.seed, request.sampling.temperature) == (5, 3, 0.0)
    assert (request.path, request.task) == ("slow", "code")
    assert json.loads(request.messages or "")[0] == {"role": "system", "content": "be short"}


def test_chat_when_a_conversation_then_history_is_sent_and_errors_do_not_end_it(
    gateway: RunningGateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.backend.reset()
    good = gateway.backend.script
    lines = iter(["one", "two", "three", "/new", "four"])

    def next_line(*_: object) -> str:
        line = next(lines, None)
        if line is None:
            raise EOFError
        gateway.backend.script = fails(EngineFailure("the engine broke")) if line == "two" else good
        return line

    monkeypatch.setattr("builtins.input", next_line)
    assert main(["chat", "--url", gateway.url]) == 0
    sent = [[message["content"] for message in json.loads(request.messages or "[]")] for request in gateway.backend.requests]
    assert sent == [["one"], ["one", "Hello world", "two"], ["one", "Hello world", "three"], ["four"]]
    assert "the engine broke" in capsys.readouterr().err


def test_status_when_ready_then_json_names_paths_and_queues(gateway: RunningGateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert gateway.chat().status_code == 200
    assert main(["status", "--json", "--url", gateway.url]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["status"] == "ready"
    assert report["backend"]["parts"] == {"tandem": True}
    assert report["answers_by_path"]["fast/fast_int4"] >= 1
    assert report["engines"]["slow"] == {"requests": {"waiting": 3.0, "scheduled": 2.0}, "kv_blocks": {"used": 5.0}}


def test_status_when_for_people_then_tables_name_the_engine(gateway: RunningGateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", gateway.url]) == 0
    shown = capsys.readouterr().out
    assert "ready" in shown
    assert "slow" in shown


def test_status_when_nothing_runs_then_one_sentence_and_exit_code_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", "http://127.0.0.1:1"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "tandem: no Tandem gateway answers at http://127.0.0.1:1; start one with: tandem serve\n"


def test_summary_when_no_engine_metrics_then_empty() -> None:
    assert summarize("") == {"outcomes": {}, "answers_by_path": {}, "engines": {}}


@pytest.fixture(name="fake_bench")
def _fake_bench(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("loadtest.bench.engine")
    monkeypatch.setitem(sys.modules, "loadtest.bench.engine", module)
    return module


def test_bench_when_json_then_one_object_alone_on_stdout(fake_bench: types.ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def run(quick: bool, progress: object) -> dict[str, object]:
        assert quick
        assert callable(progress)
        progress("round 1")
        return {"decode_tok_s": {"1": 10.5}, "vs": None}

    fake_bench.run = run  # type: ignore[attr-defined]
    assert main(["bench", "engine", "--quick", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"decode_tok_s": {"1": 10.5}, "vs": None}
    assert "round 1" in shown.err
    assert "decode_tok_s.1" in shown.err


def test_bench_when_set_up_is_wrong_then_exit_code_two(fake_bench: types.ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def run(quick: bool, progress: object) -> dict[str, object]:
        raise SetupError("The peer is not installed; run make bench.")

    fake_bench.run = run  # type: ignore[attr-defined]
    assert main(["bench", "engine"]) == 2
    assert capsys.readouterr().err == "tandem: The peer is not installed; run make bench.\n"


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["bench", "nothing"], ["chat", "--model", "gpt"]])
def test_usage_when_wrong_then_exit_code_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: tandem" in capsys.readouterr().err


def test_interrupt_when_it_comes_then_exit_code_130(fake_bench: types.ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def run(quick: bool, progress: object) -> dict[str, object]:
        raise KeyboardInterrupt

    fake_bench.run = run  # type: ignore[attr-defined]
    assert main(["bench", "engine"]) == 130
    assert "Traceback" not in capsys.readouterr().err
