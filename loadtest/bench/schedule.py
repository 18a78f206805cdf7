"""``tandem bench schedule``: the SLO order against first come, first served; cost of a decision; gaps under a long prefill.

``p99_ratio_slo_vs_fcfs``, ``slo_attainment`` and ``max_wait_ratio`` come from the simulated engine (loadtest.simulate: real queue,
scheduler and KV cache, a step-time model instead of the forward pass), so they are the same in every run. Arrivals and lengths are
those of the Azure LLM inference traces of 2023, stretched in time to 0.9 of the knee load. The knee load is where throughput over
mean latency is highest (Kleinrock's power) among the loads tried under FCFS on the same trace. The SLO is that of the ``cpu``
profile; ``with_stated_goal`` is the same with an SLO of 0.6 of the P99 TTFT that FCFS has there, and ``at_knee`` with the load of
the knee itself. A wait is the time to the first token. ``hindsight_ttft_ratio`` is what no order can beat (loadtest.late_jobs;
decodes left out).

Nothing is known of an answer's length beforehand: the traces state no limits, so every request has the rest of the context.

The step-time model is a weighted least-squares fit to steps of the engine ``fast_int8`` under the limits of the ``cpu`` profile,
0 to 16 sequences decoding with and without a long prompt beside them; ``step_time_measured`` is that fit on the machine at hand.
"""

from __future__ import annotations

import csv
import gc
import os
import random
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any

import numpy as np
import yaml

from build_engines.ensure import ensure_engines
from build_engines.progress import make_reporter
from build_engines.render import PROFILES_DIR
from loadtest.bench import Progress
from loadtest.bench.workload import prompts
from loadtest.late_jobs import least_target_s
from loadtest.simulate import BLOCK_SIZE, Arrival, EngineLimits, Served, SimulatedEngine, StepTime
from tandem.config import tandem_home
from tandem.engine import EngineConfig, LLMEngine
from tandem.engine.waiting import FirstComeFirstServed, SloOrder, WaitingQueue
from tandem.errors import SetupError
from tandem.models.openvino_decoder import load_decoder
from tandem.types import EngineRequest, RequestId, SamplingParams

TRACES_DIR = Path(__file__).resolve().parents[3] / "shared" / "data" / "azure2023"
# Fitted on 2 cores of an AMD EPYC (Zen 4), 2026-11-30: 580 steps, median error 5 %.
STEP_TIME = StepTime(base_ms=12.1, decode_ms=2.27, prefill_ms=1.05)
SLO_SHARE = 0.6
_LOADS = (0.03, 0.05, 0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.6)
_QUEUE_LENGTHS = (100, 1000, 10000)
_NUM_CHATS, _NUM_PREFILL_TOKENS = 16, 6000
_DECODES_MEASURED = (0, 1, 2, 4, 8, 12, 16)


def _of_profile() -> dict[str, Any]:
    profile: dict[str, Any] = yaml.safe_load((PROFILES_DIR / "cpu.yaml").read_text(encoding="utf-8"))
    parameters: dict[str, Any] = profile["models"]["fast_int8"]["parameters"]
    return parameters


_PROFILE = _of_profile()
LIMITS = EngineLimits(
    max_num_seqs=_PROFILE["max_num_seqs"],
    max_num_batched_tokens=_PROFILE["max_num_batched_tokens"],
    num_kv_tokens=_PROFILE["max_tokens_in_paged_kv_cache"],
    max_seq_len=_PROFILE["max_seq_len"],
)
PROFILE_SLO_TTFT_MS = float(_PROFILE["slo_ttft_ms"])


def slo_order(slo_ttft_ms: float) -> SloOrder:
    return SloOrder(slo_ttft_ms=slo_ttft_ms, tokens_per_step=LIMITS.max_num_batched_tokens)


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    """Measure; ``quick`` takes the start of the traces and few steps, and is for trying out only."""
    result: dict[str, Any] = {
        "method": "simulated: real queue, scheduler and KV cache; step-time model; deterministic",
        "step_time_model": asdict(STEP_TIME),
        "limits": asdict(LIMITS),
        "slo_ttft_ms": PROFILE_SLO_TTFT_MS,
    }
    traces = {name: _compare(name, 1500 if quick else None, progress) for name in ("code", "conv")}
    for key in ("p99_ratio_slo_vs_fcfs", "slo_attainment", "max_wait_ratio"):
        result[key] = {name: trace[key] for name, trace in traces.items()}
    result["traces"] = traces
    result["scheduler_us_per_step"] = {str(length): _us_per_step(length, 50 if quick else 500) for length in _QUEUE_LENGTHS}
    progress(f"scheduler us per step: {result['scheduler_us_per_step']}")
    with _real_engine() as make_engine:
        result["step_time_measured"] = _fit(_measured_steps(make_engine, 4 if quick else 20))
        progress(f"measured step time: {result['step_time_measured']}")
        result.update(_gaps(make_engine, quick, progress))
    return result


def load_trace(name: str, num_requests: int | None) -> list[Arrival]:
    """Arrivals of ``AzureLLMInferenceTrace_<name>.csv`` from 0 s on, prompts cut to the context. Raises: SetupError."""
    path = TRACES_DIR / f"AzureLLMInferenceTrace_{name}.csv"
    if not path.is_file():
        raise SetupError(f"{path} is missing; put the Azure LLM inference traces of 2023 there (AzurePublicDataset).")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))[:num_requests]
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in rows]
    arrivals = []
    for time_s, row in zip(times, rows, strict=True):
        num_output = max(int(row["GeneratedTokens"]), 1)
        num_prompt = min(max(int(row["ContextTokens"]), 1), LIMITS.max_seq_len - num_output)
        arrivals.append(Arrival(time_s - times[0], num_prompt, num_output, LIMITS.max_seq_len - num_prompt))
    return arrivals


def at_load(arrivals: Sequence[Arrival], load: float) -> list[Arrival]:
    """The same arrivals, stretched so that the engine works ``load`` of the time if it works on one request after the other."""
    busy_s = sum(prefill_ms(one) + one.num_output_tokens * STEP_TIME.decode_ms for one in arrivals) / 1e3
    factor = busy_s / load / max(arrivals[-1].at_s, 1e-9)
    return [replace(arrival, at_s=arrival.at_s * factor) for arrival in arrivals]


def prefill_ms(arrival: Arrival) -> float:
    """What the prompt of a request adds to the steps: its tokens, and its part of their base at a full budget."""
    num_steps = arrival.num_prompt_tokens / LIMITS.max_num_batched_tokens
    return num_steps * STEP_TIME.base_ms + arrival.num_prompt_tokens * STEP_TIME.prefill_ms


def _simulate(queue: WaitingQueue, arrivals: Sequence[Arrival]) -> list[Served]:
    return SimulatedEngine(LIMITS, STEP_TIME, queue).run(arrivals)


def find_knee(arrivals: Sequence[Arrival], progress: Progress) -> float:
    """The load with the highest throughput over mean latency under FCFS."""
    power = {}
    for load in _LOADS:
        served = _simulate(FirstComeFirstServed(), at_load(arrivals, load))
        power[load] = len(served) / max(one.end_s for one in served) / mean(one.e2e_s for one in served)
        progress(f"load {load}: power {power[load]:.5f}")
    return max(power, key=lambda load: power[load])


_FIGURES: dict[str, Callable[[Served], float]] = {
    "ttft": lambda one: one.ttft_s,
    "norm_latency": lambda one: one.norm_latency_s,
    "e2e": lambda one: one.e2e_s,
}


def _compare(name: str, num_requests: int | None, progress: Progress) -> dict[str, Any]:
    arrivals = load_trace(name, num_requests)
    knee = find_knee(arrivals, progress)
    scaled, fcfs, result = _at(arrivals, 0.9 * knee)
    goal_ms = SLO_SHARE * _p99(fcfs, _FIGURES["ttft"]) * 1e3
    result = {
        "num_requests": len(scaled),
        "knee_load": knee,
        **result,
        "with_stated_goal": {"slo_ttft_ms": round(goal_ms), **_against(fcfs, _simulate(slo_order(goal_ms), scaled), goal_ms)},
        "at_knee": _at(arrivals, knee)[2],
    }
    progress(f"{name}: {result}")
    return result


def _at(arrivals: Sequence[Arrival], load: float) -> tuple[list[Arrival], list[Served], dict[str, Any]]:
    """The arrivals at a load, what FCFS makes of them, and the figures of both orders."""
    scaled = at_load(arrivals, load)
    fcfs = _simulate(FirstComeFirstServed(), scaled)
    p99_s = {key: _p99(fcfs, of) for key, of in _FIGURES.items()}
    work_s = [prefill_ms(arrival) / 1e3 for arrival in scaled]
    hindsight_s = least_target_s([arrival.at_s for arrival in scaled], work_s, 0.01)
    figures = {
        "fcfs_p99_s": {key: round(value, 2) for key, value in p99_s.items()},
        "hindsight_ttft_ratio": round(hindsight_s / p99_s["ttft"], 3),
        **_against(fcfs, _simulate(slo_order(PROFILE_SLO_TTFT_MS), scaled), PROFILE_SLO_TTFT_MS),
    }
    return scaled, fcfs, figures


def _against(fcfs: Sequence[Served], slo: Sequence[Served], slo_ttft_ms: float) -> dict[str, Any]:
    return {
        "p99_ratio_slo_vs_fcfs": {key: round(_p99(slo, of) / _p99(fcfs, of), 3) for key, of in _FIGURES.items()},
        "mean_ratio_slo_vs_fcfs": {key: round(mean(map(of, slo)) / mean(map(of, fcfs)), 3) for key, of in _FIGURES.items()},
        "slo_attainment": {
            policy: round(sum(one.ttft_s * 1e3 <= slo_ttft_ms for one in served) / len(served), 4)
            for policy, served in (("fcfs", fcfs), ("slo", slo))
        },
        "max_wait_ratio": round(max(a.ttft_s / b.ttft_s for a, b in zip(slo, fcfs, strict=True)), 2),
    }


def _p99(served: Sequence[Served], of: Callable[[Served], float]) -> float:
    values = sorted(map(of, served))
    return values[int(0.99 * (len(values) - 1))]


def _us_per_step(num_waiting: int, num_steps: int) -> float:
    """Median time to plan a step while so many wait, with 8 sequences running and others ending and starting."""
    rng = random.Random(num_waiting)
    engine = SimulatedEngine(LIMITS, STEP_TIME, slo_order(PROFILE_SLO_TTFT_MS))
    engine.fill([Arrival(0.0, rng.randrange(20, 900), rng.randrange(1, 60), 100) for _ in range(num_waiting + 8)])
    plans_us = []
    plan = engine.scheduler.schedule
    for _ in range(num_steps):
        gc.disable()  # a collection would be counted for whoever happens to run
        started = perf_counter()
        batch = plan()
        plans_us.append((perf_counter() - started) * 1e6)
        gc.enable()
        engine.take(batch)
    return round(median(plans_us), 1)


MakeEngine = Callable[[WaitingQueue, int], LLMEngine]
"""An engine over the one loaded decoder, with a queue and a number of sequences; the one before must be empty."""


@contextmanager
def _real_engine() -> Generator[MakeEngine]:
    """The engine ``fast_int8`` under the limits of the ``cpu`` profile."""
    folder = ensure_engines(tandem_home(), None, None, make_reporter())["fast_int8"]
    decoder = load_decoder(
        folder, kv_cache_dtype="f16", num_blocks=LIMITS.num_kv_tokens // BLOCK_SIZE, num_threads=os.cpu_count() or 1
    )

    def make(queue: WaitingQueue, max_num_seqs: int) -> LLMEngine:
        config = EngineConfig(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=LIMITS.max_num_batched_tokens, has_prefix_cache=False
        )
        return LLMEngine(decoder, config, queue)

    yield make


class _Recorder(FirstComeFirstServed):
    """Keeps what it hears of the steps: tokens of prompts, tokens decoded, milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[int, int, float]] = []

    def note_step(self, num_prefill_tokens: int, num_decode_tokens: int, step_ms: float) -> None:
        self.steps.append((num_prefill_tokens, num_decode_tokens, step_ms))


def _measured_steps(make_engine: MakeEngine, num_steps: int) -> list[tuple[int, int, float]]:
    """Steps of the real engine: so many decode, then a long prompt is computed beside them."""
    steps: list[tuple[int, int, float]] = []
    for num_decodes in _DECODES_MEASURED:
        recorder = _Recorder()
        engine = make_engine(recorder, num_decodes + 1)
        for number, prompt in enumerate(prompts(max(num_decodes, 1), 256)[:num_decodes]):
            _add(engine, str(number), prompt, 400)
        while num_decodes and (engine.num_waiting or engine.stats().num_context_tokens < 256 * num_decodes):
            engine.step()
        for _ in range(num_steps if num_decodes else 0):
            engine.step()
        _add(engine, "long", prompts(num_decodes + 1, 3000)[-1], 1)
        for _ in range(num_steps):
            engine.step()
        engine.fail_all(SetupError("the measurement is over"))
        steps += recorder.steps
    return steps


def _fit(steps: Sequence[tuple[int, int, float]]) -> dict[str, float]:
    """Least squares of the relative error, so that short steps count as much as long ones."""
    ms = np.array([step_ms for _, _, step_ms in steps])
    tokens = np.array([(1, num_decodes, num_prefill) for num_prefill, num_decodes, _ in steps], np.float64)
    base, decode, prefill = np.linalg.lstsq(tokens / ms[:, None], np.ones(len(ms)), rcond=None)[0].tolist()
    error = np.abs(tokens @ (base, decode, prefill) - ms) / ms
    return {
        "base_ms": round(base, 2),
        "decode_ms": round(decode, 2),
        "prefill_ms": round(prefill, 2),
        "median_error": round(float(np.median(error)), 3),
    }


def _add(engine: LLMEngine, name: str, prompt: tuple[int, ...], max_tokens: int) -> None:
    engine.add(engine.prepare(EngineRequest(RequestId(name), prompt, SamplingParams(max_tokens=max_tokens))))


def _gaps(make_engine: MakeEngine, quick: bool, progress: Progress) -> dict[str, Any]:
    """Short chats decode while one long prompt is computed."""
    engine = make_engine(slo_order(PROFILE_SLO_TTFT_MS), _NUM_CHATS + 1)
    num_long = 600 if quick else _NUM_PREFILL_TOKENS
    num_quiet = 10 if quick else 40

    for number, prompt in enumerate(prompts(_NUM_CHATS, 32)):
        _add(engine, str(number), prompt, 400)
    while engine.stats().num_generated_tokens < 2 * _NUM_CHATS:
        engine.step()
    quiet = [_timed(engine)[0] for _ in range(num_quiet)]
    _add(engine, "long", prompts(_NUM_CHATS + 1, num_long)[-1], 1)
    loaded: list[float] = []
    while True:
        gap_ms, names = _timed(engine)
        if "long" in names:
            break
        loaded.append(gap_ms)
    engine.fail_all(SetupError("the measurement is over"))
    gaps = quiet + loaded
    progress(f"gaps ms: median {median(gaps):.1f}, quiet {median(quiet):.1f}, prefill {median(loaded):.1f}, max {max(gaps):.1f}")
    return {
        "max_itl_ratio": round(max(gaps) / median(gaps), 2),
        "p99_itl_ratio": round(sorted(gaps)[int(0.99 * (len(gaps) - 1))] / median(gaps), 2),
        "itl_ratio_prefill_vs_quiet": round(median(loaded) / median(quiet), 2),
        "itl_median_ms": round(median(gaps), 1),
        "num_long_prompt_tokens": num_long,
    }


def _timed(engine: LLMEngine) -> tuple[float, set[str]]:
    """One step: its time, which is the gap between two tokens of every chat, and whom it gave a token."""
    started = perf_counter()
    deltas = engine.step()
    return (perf_counter() - started) * 1e3, {delta.request_id for delta in deltas}
