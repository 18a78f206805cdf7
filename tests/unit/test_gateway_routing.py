"""What a caller may tell the router over HTTP, and the records of its decisions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.routing.explain import DecisionRecord
from tandem_cli.main import main
from tandem_client import Sampling, TandemClient
from tandem_client.model_names import read_model
from tandem_client.text import TextChunk, TextRequest
from tandem_gateway.decisions import DecisionStore
from tandem_gateway.keys import hash_api_key
from tests.routing_factories import ScriptedStage, features_of, in_thread, policy_of
from tests.unit.gateway_fakes import CHAT, FakeBackend, RunningGateway, chunk, running_gateway


def record(score: float = 0.9) -> str:
    policy, features = policy_of(in_thread(ScriptedStage("judge", score))), features_of("SECRET")
    return DecisionRecord.of(policy.decide(features), features, policy.terms, "abc").to_json()


async def answers_with_records(request: TextRequest) -> AsyncIterator[TextChunk]:
    for row in range(request.num_rows):
        yield replace(chunk("Hello", row=row), decision_record=record(0.1 + row / 10))
        yield replace(chunk(" world", "stop", count=2, row=row), decision_record="")


@pytest.fixture(name="gateway")
def _gateway() -> Iterator[RunningGateway]:
    with running_gateway(FakeBackend(answers_with_records)) as gateway:
        yield gateway


@pytest.mark.parametrize(
    ("name", "path", "threshold"),
    [
        ("tandem", "auto", None),
        ("tandem-slow", "slow", None),
        ("tandem@0.42", "auto", 0.42),
        ("tandem@0", "auto", 0.0),
        ("tandem@1", "auto", 1.0),
        ("tandem@1.0", "auto", 1.0),
        ("tandem@.5", "auto", 0.5),
    ],
)
def test_model_when_known_then_path_and_threshold(name: str, path: str, threshold: float | None) -> None:
    choice = read_model(name)
    assert choice is not None
    assert (choice.path, choice.threshold) == (path, threshold)


@pytest.mark.parametrize(
    "name",
    ["", "tandem@", "tandem@1.1", "tandem@-0.1", "tandem@nan", "tandem@1e-3", "tandem@0.1234567", "tandem-fast@0.5"],
)
def test_model_when_unknown_then_404(gateway: RunningGateway, name: str) -> None:
    response = gateway.chat(model=name)
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    assert gateway.backend.requests == []


def test_threshold_when_in_the_model_then_reaches_the_router_and_no_label(gateway: RunningGateway) -> None:
    assert gateway.chat(model="tandem@0.42").status_code == 200
    request = gateway.backend.requests[-1]
    assert (request.path, request.threshold) == ("auto", 0.42)
    assert "0.42" not in gateway.http.get("/metrics").text


def test_threshold_when_given_to_the_client_then_reaches_the_router(gateway: RunningGateway) -> None:
    with TandemClient.http(gateway.url) as client:
        client.chat("hi", model="tandem@0.3", sampling=Sampling(max_tokens=2))
    assert gateway.backend.requests[-1].threshold == 0.3


def test_headers_when_given_then_reach_the_router(gateway: RunningGateway) -> None:
    given = {"x-slo-ttft-ms": "250", "x-slo-tpot-ms": "40.5", "x-session-id": "chat-7"}
    assert gateway.http.post("/v1/chat/completions", json=CHAT, headers=given).status_code == 200
    request = gateway.backend.requests[-1]
    assert (request.slo_ttft_ms, request.slo_tpot_ms, request.session) == (250.0, 40.5, "chat-7")


def test_session_when_in_the_metadata_then_wins(gateway: RunningGateway) -> None:
    body = {**CHAT, "metadata": {"session": "meta"}}
    gateway.http.post("/v1/chat/completions", json=body, headers={"x-session-id": "header"})
    assert gateway.backend.requests[-1].session == "meta"


@pytest.mark.parametrize("name", ["x-slo-ttft-ms", "x-slo-tpot-ms"])
@pytest.mark.parametrize("value", ["0", "-1", "fast", "1e3", "nan", "inf", "99999999", "1;2", ""])
def test_slo_when_no_number_then_400_by_name(gateway: RunningGateway, name: str, value: str) -> None:
    response = gateway.http.post("/v1/chat/completions", json=CHAT, headers={name: value})
    assert (response.status_code, response.json()["error"]["param"]) == (400, name)


def test_session_when_too_long_then_400_by_name(gateway: RunningGateway) -> None:
    response = gateway.http.post("/v1/chat/completions", json=CHAT, headers={"x-session-id": "x" * 129})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "x-session-id")


def test_decision_when_asked_for_by_either_id_then_record(gateway: RunningGateway) -> None:
    answer = gateway.http.post("/v1/chat/completions", json=CHAT, headers={"x-request-id": "mine-1"})
    by_answer = gateway.http.get(f"/v1/decisions/{answer.json()['id']}").json()
    by_request = gateway.http.get("/v1/decisions/mine-1").json()
    assert by_answer["records"] == by_request["records"]
    assert len(by_answer["records"]) == 1


def test_decision_when_several_prompts_then_one_record_each(gateway: RunningGateway) -> None:
    answer = gateway.complete(prompt=["a", "b", "c"])
    assert len(gateway.http.get(f"/v1/decisions/{answer.json()['id']}").json()["records"]) == 3


def test_decision_when_unknown_then_404(gateway: RunningGateway) -> None:
    response = gateway.http.get("/v1/decisions/nothing")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


def test_decision_when_of_another_key_then_404() -> None:
    keys = ("sk-aaaaaaaaaaaaaaaa", "sk-bbbbbbbbbbbbbbbb")
    headers = [{"authorization": f"Bearer {key}"} for key in keys]
    with running_gateway(FakeBackend(answers_with_records), api_keys=tuple(map(hash_api_key, keys))) as gateway:
        name = gateway.http.post("/v1/chat/completions", json=CHAT, headers=headers[0]).json()["id"]
        assert gateway.http.get(f"/v1/decisions/{name}", headers=headers[0]).status_code == 200
        assert gateway.http.get(f"/v1/decisions/{name}", headers=headers[1]).status_code == 404
        assert gateway.http.get(f"/v1/decisions/{name}").status_code == 401


def test_store_is_bounded_and_forgets_the_oldest() -> None:
    store = DecisionStore(2)
    for number in range(4):
        store.keep("t", f"c{number}", f"r{number}", ["x"])
        store.keep("t", f"none{number}", "again", [])
    assert [store.find("t", f"c{number}") for number in range(4)] == [None, None, ("x",), ("x",)]
    assert [store.find("t", f"r{number}") for number in range(4)] == [None, None, ("x",), ("x",)]
    assert store.find("t", "again") is None
    assert store.find("other", "c3") is None


def test_explain_when_given_an_id_then_prints_the_decision_and_replays_it(
    gateway: RunningGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    name = gateway.chat().json()["id"]
    assert main(["explain", name, "--url", gateway.url]) == 0
    shown = capsys.readouterr().out
    assert "judge: sure score 0.1000" in shown
    assert "gives the same decision" in shown
    assert main(["explain", name, "--url", gateway.url, "--json"]) == 0
    assert DecisionRecord.from_json(capsys.readouterr().out.strip()).decision.score == 0.1


def test_explain_when_the_replay_differs_then_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "record.json"
    file.write_text(record().replace('"engine":"fast_int4","stage"', '"engine":"fast_int8","stage"'))
    assert main(["explain", "--file", str(file)]) == 1
    assert "ANOTHER" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["id", "--file", "x"], ["--file", "/does/not/exist"]])
def test_explain_when_misused_then_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_explain_when_the_id_is_unknown_then_exit_code_1(gateway: RunningGateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "nothing", "--url", gateway.url]) == 1
    assert "no decision is kept" in capsys.readouterr().err
