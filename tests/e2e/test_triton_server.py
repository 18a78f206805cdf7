"""The engine contract on the real server with real weights, and the server's own life and death."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tandem.errors import from_wire
from tandem.protocol import ENGINE_MODELS, MODELS
from tandem.server.stubs import is_running
from tandem.server.supervisor import ServerState
from tandem.server.triton_process import TritonServer, TritonServerConfig
from tests.e2e.conftest import ROOT, RunningTriton, free_ports
from tests.e2e.triton_calls import CHAT_PROMPT, Stream, ask, engine_tensors, stop, token_ids

pytestmark = [pytest.mark.e2e, pytest.mark.weights]
ENGINE = "fast_int8"


def gauge(triton: RunningTriton, family: str, model: str, member: str) -> float:
    text = urllib.request.urlopen(triton.config.metrics_url, timeout=5).read().decode()
    lines = [line for line in text.splitlines() if line.startswith(family) and f'"{model}"' in line and f'"{member}"' in line]
    assert len(lines) == 1, lines
    return float(lines[0].rpartition(" ")[2])


def assert_idle(triton: RunningTriton, *models: str, timeout_s: float = 5.0) -> None:
    """KV blocks, running and waiting are back at their start."""
    deadline = time.monotonic() + timeout_s
    while True:
        state = {
            (model, member): gauge(triton, family, model, member)
            for model in models
            for family, member in (
                ("nv_trt_llm_kv_cache_block_metrics", "used"),
                ("nv_trt_llm_kv_cache_block_metrics", "fraction"),
                ("nv_trt_llm_request_metrics", "scheduled"),
                ("nv_trt_llm_request_metrics", "waiting"),
            )
        }
        if not any(state.values()):
            return
        assert time.monotonic() < deadline, state
        time.sleep(0.05)


@pytest.mark.parametrize("model", ENGINE_MODELS)
def test_engine_simple(triton: RunningTriton, model: str):
    replies = ask(triton.config.grpc_url, model, engine_tensors(streaming=False))
    assert len(replies) == 1
    assert 0 < len(token_ids(replies)) <= 12


@pytest.mark.parametrize("model", ENGINE_MODELS)
def test_engine_stream(triton: RunningTriton, model: str):
    whole = token_ids(ask(triton.config.grpc_url, model, engine_tensors(streaming=False)))
    streamed = ask(triton.config.grpc_url, model, engine_tensors())
    assert token_ids(streamed) == whole
    assert all(reply.outputs["output_ids"].shape[:2] == (1, 1) for reply in streamed)
    assert sum(reply.is_final for reply in streamed) == 1


def test_engine_all_params(triton: RunningTriton):
    tensors = engine_tensors(
        max_tokens=10,
        streaming=False,
        temperature=0.8,
        runtime_top_k=40,
        runtime_top_p=0.95,
        min_p=0.01,
        seed=np.array([[7]], np.uint64),
        repetition_penalty=1.1,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        min_tokens=4,
        num_return_sequences=2,
        return_log_probs=True,
        top_logprobs=3,
        return_perf_metrics=True,
        return_num_input_tokens=True,
        return_num_output_tokens=True,
        bad_words_list=np.array([[[198], [1]]], np.int32),
        stop_words_list=np.array([[[0], [1]]], np.int32),
        embedding_bias=np.zeros((1, 49152), np.float32),
    )
    first, second = ask(triton.config.grpc_url, ENGINE, tensors), ask(triton.config.grpc_url, ENGINE, tensors)
    assert {int(reply.outputs["sequence_index"].item()) for reply in first} == {0, 1}
    for reply in first:
        count = reply.outputs["sequence_length"].item()
        assert count >= 4
        assert 198 not in reply.outputs["output_ids"]
        assert reply.outputs["output_log_probs"].shape == (1, 1, count)
        assert reply.outputs["output_top_ids"].shape == (1, count, 3)
        assert reply.outputs["num_input_tokens"].item() == len(CHAT_PROMPT)
        assert reply.outputs["num_output_tokens"].item() == count
        assert reply.outputs["kv_cache_alloc_total_blocks"].item() >= 1
    by_index = [{int(r.outputs["sequence_index"].item()): r.outputs["output_ids"].tolist() for r in run} for run in (first, second)]
    assert by_index[0] == by_index[1]


def test_engine_load(triton: RunningTriton):
    """16 equal prompts at once: 16 equal greedy answers, and equal to the lone run."""
    alone = token_ids(ask(triton.config.grpc_url, ENGINE, engine_tensors(max_tokens=16)))
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: token_ids(ask(triton.config.grpc_url, ENGINE, engine_tensors(max_tokens=16))), range(16)))
    assert answers == [alone] * 16
    assert_idle(triton, ENGINE)


def test_engine_rows_when_ragged_then_each_equals_its_lone_run(triton: RunningTriton):
    short, long = CHAT_PROMPT[-6:], CHAT_PROMPT
    padded = np.zeros((2, len(long)), np.int32)
    padded[0, : len(short)], padded[1] = short, long
    tensors = {
        "input_ids": padded,
        "input_lengths": np.array([[len(short)], [len(long)]], np.int32),
        "request_output_len": np.array([[5], [8]], np.int32),
        "streaming": np.array([[True], [True]]),
    }
    by_row: dict[int, list[int]] = {0: [], 1: []}
    for reply in ask(triton.config.grpc_url, ENGINE, tensors):
        by_row[int(reply.outputs["batch_index"].item())] += reply.outputs["output_ids"].reshape(-1).tolist()
    no_end = {"end_id": -1}
    for row, (prompt, count) in enumerate(((short, 5), (long, 8))):
        assert by_row[row] == token_ids(ask(triton.config.grpc_url, ENGINE, engine_tensors(prompt, count, **no_end)))


def test_stop_tensor_when_running_then_ends_early_with_an_empty_last_part(triton: RunningTriton):
    with Stream(triton.config.grpc_url, ENGINE, engine_tensors(max_tokens=2000, end_id=-1), "to-be-stopped") as stream:
        for _ in range(3):
            assert not stream.next().is_final
        reply = stop(triton.config.grpc_url, ENGINE, "to-be-stopped")
        rest = list(stream.replies())
    last = rest[-1]
    assert len(rest) < 1000  # far from the 2000 tokens that were asked for; `tandem bench cancel` has the time it takes
    assert reply[-1].is_final
    assert reply[-1].error is None
    assert last.error is None
    assert last.outputs["output_ids"].shape == (1, 1, 0)
    assert_idle(triton, ENGINE)


def test_client_when_it_cancels_then_blocks_are_free(triton: RunningTriton):
    stream = Stream(triton.config.grpc_url, ENGINE, engine_tensors(max_tokens=2000, end_id=-1), "goes-away")
    stream.next()
    stream.cancel()
    assert_idle(triton, ENGINE)


@pytest.mark.parametrize(
    ("tensors", "field"),
    [
        ({"input_lengths": 99}, "input_lengths"),
        ({"request_output_len": 0}, "request_output_len"),
        ({"temperature": float("nan"), "runtime_top_p": 0.9}, "temperature"),
        ({"end_id": 49152}, "end_id"),
        ({"input_ids": np.array([[49152] * 15], np.int32)}, "prompt_ids"),
        ({"beam_width": 4}, "beam_width"),
        ({"lora_task_id": np.array([[1]], np.uint64)}, "lora_task_id"),
    ],
)
def test_engine_invalid(triton: RunningTriton, tensors, field):
    """The text names the field and carries our code; neighbours are unharmed."""
    url = triton.config.grpc_url
    alone = token_ids(ask(url, ENGINE, engine_tensors()))
    with Stream(url, ENGINE, engine_tensors(), "neighbour") as neighbour:
        replies = ask(url, ENGINE, engine_tensors(**tensors))
        assert token_ids(list(neighbour.replies())) == alone
    assert len(replies) == 1
    error = from_wire(replies[0].error.message())
    assert error is not None
    assert error.field == field
    assert "Traceback" not in replies[0].error.message()
    assert_idle(triton, ENGINE)


def test_engine_when_triton_itself_refuses_then_the_input_is_named(triton: RunningTriton):
    url = triton.config.grpc_url
    for tensors, words in (
        ({"surprise": 1}, ["surprise"]),
        ({"end_id": np.array([[1, 2]], np.int32)}, ["end_id", "shape"]),
        ({"end_id": 0.5}, ["end_id", "FP32"]),
    ):
        error = ask(url, ENGINE, engine_tensors(**tensors))[0].error
        assert all(word in error.message() for word in words), error.message()


def test_prompt_when_longer_than_the_context_then_refused_and_others_go_on(triton: RunningTriton):
    url = triton.config.grpc_url
    alone = token_ids(ask(url, ENGINE, engine_tensors()))
    with ThreadPoolExecutor(5) as pool:
        short = [pool.submit(lambda: token_ids(ask(url, ENGINE, engine_tensors()))) for _ in range(5)]
        replies = ask(url, ENGINE, engine_tensors([504] * 20_000))
    error = from_wire(replies[0].error.message())
    assert error is not None
    assert error.code == "context_length_exceeded"
    assert "20000" in error.message
    assert "8192" in error.message
    assert [future.result() for future in short] == [alone] * 5
    assert_idle(triton, ENGINE)


def test_max_tokens_when_huge_then_cut_to_the_context(triton: RunningTriton):
    with Stream(triton.config.grpc_url, ENGINE, engine_tensors(max_tokens=2**31 - 1), "huge") as stream:
        assert stream.next().error is None
    assert_idle(triton, ENGINE)


def test_bc08_seed_when_neighbours_share_the_batch_then_same_tokens(triton: RunningTriton):
    url = triton.config.grpc_url

    def sampled(seed: int | None) -> list[int]:
        extra = {} if seed is None else {"seed": np.array([[seed]], np.uint64)}
        return token_ids(ask(url, ENGINE, engine_tensors(max_tokens=16, temperature=0.8, runtime_top_p=1.0, **extra)))

    alone = sampled(42)
    with ThreadPoolExecutor(3) as pool:
        for _ in range(3):
            with_seed, _, other = pool.map(sampled, (42, None, 7))
            assert with_seed == alone
            assert other != alone


def test_bc25_ids_when_equal_at_the_same_time_then_each_gets_its_own_answer(triton: RunningTriton):
    url = triton.config.grpc_url
    counts = [5, 9, 13]
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda n: token_ids(ask(url, ENGINE, engine_tensors(max_tokens=n, end_id=-1), "same-id")), counts))
    assert [len(answer) for answer in answers] == counts
    assert answers[0] == answers[2][:5]


def test_metrics_when_idle_then_the_families_of_tensorrt_llm_are_there(triton: RunningTriton):
    for model in ENGINE_MODELS:
        assert gauge(triton, "nv_trt_llm_kv_cache_block_metrics", model, "max") > 0
        assert gauge(triton, "nv_trt_llm_kv_cache_block_metrics", model, "tokens_per") == 32
        assert gauge(triton, "nv_trt_llm_request_metrics", model, "max") == 16
    assert_idle(triton, *ENGINE_MODELS)


def test_models_when_loaded_then_all_have_the_tensors_of_the_protocol(triton: RunningTriton):
    for name, spec in MODELS.items():
        text = urllib.request.urlopen(f"{triton.config.http_url}/v2/models/{name}", timeout=5).read()
        metadata = json.loads(text)
        assert [(t["name"], t["datatype"]) for t in metadata["inputs"]] == [(t.name, t.dtype.value) for t in spec.inputs]
        assert [(t["name"], t["datatype"]) for t in metadata["outputs"]] == [(t.name, t.dtype.value) for t in spec.outputs]


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/systemsharedmemory/region/x/register", "/v2/logging"])
def test_restricted_endpoint_when_called_without_its_header_then_refused(triton: RunningTriton, path: str):
    request = urllib.request.Request(f"{triton.config.http_url}{path}", data=b"{}", method="POST")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=5)
    with caught.value:
        assert caught.value.code == 403


def test_ports_when_open_then_on_loopback_only(triton: RunningTriton):
    config = triton.config
    listening = {f"{port:04X}" for port in (config.http_port, config.grpc_port, config.metrics_port)}
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:] + Path("/proc/net/tcp6").read_text().splitlines()[1:]
    local = [line.split()[1].split(":") for line in lines if line.split()[3] == "0A"]
    found = {port: address for address, port in local if port in listening}
    assert set(found) == listening
    mapped = "0000000000000000FFFF0000"  # gRPC listens on the IPv6 form of the IPv4 address
    assert {address.removeprefix(mapped) for address in found.values()} == {"0100007F"}


def test_start_when_a_port_is_taken_then_one_sentence_names_port_and_option(triton: RunningTriton, engine_home: Path):
    http, metrics = free_ports(2)
    second = TritonServer(TritonServerConfig(ROOT / "model_repository", engine_home, http, triton.config.grpc_port, metrics))
    with pytest.raises(Exception, match=f"{triton.config.grpc_port}.*--triton-grpc-port"):
        second.start()
    assert not second.is_running()


def test_model_process_when_killed_then_callers_get_an_error_and_the_server_recovers(triton: RunningTriton):
    """BC-26 in small: readiness is false meanwhile, whoever waits is told, the next request works."""
    url = triton.config.grpc_url
    before = token_ids(ask(url, "slow", engine_tensors()))
    restarts = triton.supervisor.num_restarts
    victim = next(stub for stub in triton.server.stubs() if stub.instance.startswith("slow"))
    with Stream(url, "slow", engine_tensors(max_tokens=2000, end_id=-1), "victim") as stream:
        stream.next()
        os.kill(victim.pid, signal.SIGKILL)
        replies = list(stream.replies(timeout_s=20))
        assert replies[-1].error is not None
    assert triton.supervisor.wait_until(ServerState.RECOVERING, 5) or triton.supervisor.num_restarts > restarts
    triton.wait_ready()
    assert triton.supervisor.num_restarts == restarts + 1
    assert token_ids(ask(url, "slow", engine_tensors())) == before


def test_server_when_killed_then_started_again_without_leftovers(triton: RunningTriton):
    url = triton.config.grpc_url
    old = triton.server.stubs()
    os.kill(triton.server.pid, signal.SIGKILL)
    assert triton.supervisor.wait_until(ServerState.RECOVERING, 10)
    assert not triton.supervisor.ready()
    triton.wait_ready()
    assert not {stub.pid for stub in old} & {stub.pid for stub in triton.server.stubs()}
    assert not [stub for stub in old if is_running(stub.pid)]
    regions = [path.name for path in Path("/dev/shm").glob(f"tandem_{os.getpid()}_*")]
    assert len({name.split("_")[2] for name in regions}) == 1  # those of the running server only
    assert token_ids(ask(url, ENGINE, engine_tensors()))


def test_launcher_when_killed_then_nothing_stays_behind(engine_home: Path, tmp_path: Path):
    """Server and model processes die with their launcher, however that ends."""
    http, grpc_port, metrics = free_ports(3)
    script = (
        "import sys, time; from pathlib import Path\n"
        "from tandem.server.triton_process import TritonServer, TritonServerConfig\n"
        f"s = TritonServer(TritonServerConfig(Path({str(ROOT / 'model_repository')!r}), Path({str(engine_home)!r}),"
        f" {http}, {grpc_port}, {metrics}))\n"
        "s.start(); print(s.pid, flush=True)\n"
        "while not s.stubs(): time.sleep(0.05)\n"
        "print(*[stub.pid for stub in s.stubs()], flush=True); time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'python_backend'}"}
    launcher = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
    assert launcher.stdout is not None
    pids = [int(text) for _ in range(2) for text in launcher.stdout.readline().split()]
    assert len(pids) > 1
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    deadline = time.monotonic() + 60
    while alive := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.1)


def test_stop_when_requests_run_then_processes_and_shared_memory_are_gone(engine_home: Path):
    http, grpc_port, metrics = free_ports(3)
    server = TritonServer(TritonServerConfig(ROOT / "model_repository", engine_home, http, grpc_port, metrics, exit_timeout_s=1))
    server.start()
    deadline = time.monotonic() + 180
    while not server.is_ready():
        assert time.monotonic() < deadline, server.log_tail()
        time.sleep(0.2)
    pid, stubs = server.pid, server.stubs()
    assert {stub.instance.rpartition("_")[0].rpartition("_")[0] for stub in stubs} == set(MODELS) - {"tandem"}
    refused = {"text_input": np.array([[b"hi"]], object), "max_tokens": np.array([[0]], np.int32)}
    assert ask(server.config.grpc_url, "tandem", refused)[-1].error is not None
    with Stream(server.config.grpc_url, "slow", engine_tensors(max_tokens=2000, end_id=-1), "runs") as stream:
        stream.next()
        stopper = threading.Thread(target=server.stop)
        stopper.start()
        assert list(stream.replies(timeout_s=30))[-1].is_final
        stopper.join()
    assert not [number for number in (pid, *(stub.pid for stub in stubs)) if number is not None and is_running(number)]
    assert not list(Path("/dev/shm").glob(f"{server._shm_prefix}*"))
    assert server.pid is None
    # An error that is not the final response of its request would count as in flight for ever.
    assert "Model 'tandem' (version 1) has" not in server.config.log_file.read_text()
