"""What the router costs: the rules by themselves, and the whole BLS hop against calling the engine directly.

Both sides of the hop answer the same one-token requests over one open gRPC stream each, in turns. ``bls_ms`` holds the
median of the differences within pairs, and the difference of the two P99, since a pair's difference is mostly the engine's noise.
"""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Mapping
from importlib import resources
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import tritonclient.grpc as triton
import yaml
from tritonclient.utils import np_to_triton_dtype

from loadtest.bench import Progress
from loadtest.bench.private_server import private_server
from tandem.errors import EngineFailure
from tandem.routing.features import RouteFeatures, extract_features
from tandem.routing.rules_file import load_policy
from tandem_client import Sampling, TandemClient

_ENGINE = "fast_int4"
_PROMPT = (1, 4093, 198, 5345, 288, 2)
_TIMEOUT_S = 30.0
_TEXTS = (
    "Translate to French: good morning",
    "Prove that there are infinitely many primes",
    "Hello, how are you today?",
    "What is 12 * 7?",
    "请把下面的话翻译成英文:今天天气很好",
    "Summarize the following text in one sentence. " + "The museum opened a new hall on Monday. " * 30,
    "Why does this fail?\n```python\n" + "x = [1, 2, 3]\nfor y in x:\n    print(y)\n" * 20 + "```",
)

Tensors = Mapping[str, npt.NDArray[Any]]


def rules_ms(*, rounds: int) -> dict[str, float]:
    """Time of a decision by rules alone, in this thread: P50 and P99 in ms."""
    policy = load_policy()
    prompts = [extract_features(text, num_prompt_tokens=20 + len(text) // 4, num_turns=1) for text in _TEXTS]
    costs = []
    for _ in range(rounds):
        for features in prompts:
            start_ns = time.perf_counter_ns()
            policy.decide(features)
            costs.append((time.perf_counter_ns() - start_ns) / 1e6)
    return {"p50": round(float(np.percentile(costs, 50)), 4), "p99": round(float(np.percentile(costs, 99)), 4)}


def bls_ms(progress: Progress, *, pairs: int) -> dict[str, float]:
    """The hop through the router with a decision by rules, over the engine alone, in ms."""
    features = extract_features(_TEXTS[0], num_prompt_tokens=len(_PROMPT), num_turns=1)
    with private_server(progress, stats_check_period_ms=1000) as server:
        engine, router = (
            _Caller(server.grpc_address, _ENGINE, _engine_tensors()),
            _Caller(server.grpc_address, "router", _router_tensors(features)),
        )
        with engine, router:
            for _ in range(20):
                engine.call_ms()
                router.call_ms()
            progress(f"{pairs} one-token requests to {_ENGINE} and through the router, in turns")
            times = np.array([(engine.call_ms(), router.call_ms()) for _ in range(pairs)])
    p99 = np.percentile(times, 99, axis=0)
    return {
        "engine_p50": round(float(np.median(times[:, 0])), 3),
        "engine_p99": round(float(p99[0]), 3),
        "router_p50": round(float(np.median(times[:, 1])), 3),
        "router_p99": round(float(p99[1]), 3),
        "overhead_p50": round(float(np.median(times[:, 1] - times[:, 0])), 3),
        "overhead_p99": round(float(p99[1] - p99[0]), 3),
    }


def scorer_ms(progress: Progress, *, rounds: int) -> dict[str, Any]:
    """Decisions by the LLM scorer alone on an idle server, in ms, and how they ended."""
    rules = yaml.safe_load(resources.files("tandem.routing").joinpath("default_rules.yaml").read_text(encoding="utf-8"))
    rules["stages"]["rules"]["enabled"] = rules["stages"]["classifier"]["enabled"] = False
    rules["stages"]["scorer"]["enabled"] = True
    outcomes: Counter[str] = Counter()
    costs = []
    text = yaml.safe_dump(rules, allow_unicode=True)
    with private_server(progress, stats_check_period_ms=1000, rules=text) as server, TandemClient.http(server.http_url) as client:
        for number in range(rounds):
            answer = client.chat(f"{_TEXTS[number % len(_TEXTS)]} ({number})", sampling=Sampling(max_tokens=1))
            (record,) = httpx.get(f"{server.http_url}/v1/decisions/{answer.request_id}", trust_env=False).json()["records"]
            (report,) = record["evidence"]["reports"]
            outcomes[report["outcome"]] += 1
            if report["outcome"] in ("sure", "overran"):
                costs.append(report["cost_ms"])
    figures = {f"p{q}": round(float(np.percentile(costs, q)), 2) if costs else None for q in (50, 99)}
    return {**figures, "outcomes": dict(outcomes)}


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    """All figures."""
    return {
        "rules_ms": rules_ms(rounds=100 if quick else 1000),
        "bls_ms": bls_ms(progress, pairs=50 if quick else 500),
        "scorer_ms": scorer_ms(progress, rounds=40 if quick else 200),
    }


class _Caller:
    """One stream to one model, and one request that is sent again and again."""

    def __init__(self, address: str, model: str, tensors: Tensors) -> None:
        self._model = model
        self._answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self._client = triton.InferenceServerClient(address)
        self._inputs = [_input(name, array) for name, array in tensors.items()]
        self._number = 0

    def __enter__(self) -> _Caller:
        self._client.start_stream(lambda result, error: self._answers.put((result, error)))
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_stream()
        self._client.close()

    def call_ms(self) -> float:
        """From sending to the final response. Raises: EngineFailure."""
        self._number += 1
        start_s = time.perf_counter()
        self._client.async_stream_infer(
            self._model, self._inputs, request_id=f"bench-{self._model}-{self._number}", enable_empty_final_response=True
        )
        while True:
            result, error = self._answers.get(timeout=_TIMEOUT_S)
            if error is not None:
                raise EngineFailure(str(error))
            if result.get_response().parameters["triton_final_response"].bool_param:
                return (time.perf_counter() - start_s) * 1e3


def _engine_tensors() -> Tensors:
    return {
        "input_ids": np.array([_PROMPT], np.int32),
        "input_lengths": np.array([[len(_PROMPT)]], np.int32),
        "request_output_len": np.array([[1]], np.int32),
        "streaming": np.array([[False]]),
    }


def _router_tensors(features: RouteFeatures) -> Tensors:
    return {
        "input_ids": np.array([_PROMPT], np.int32),
        "input_lengths": np.array([[len(_PROMPT)]], np.int32),
        "route_features": np.array([[features.to_json().encode()]], np.object_),
        "max_tokens": np.array([[1]], np.int32),
    }


def _input(name: str, array: npt.NDArray[Any]) -> Any:
    tensor = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array)
    return tensor
