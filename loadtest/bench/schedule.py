"""``tandem bench schedule``: the SLO order against first come, first served; cost of a decision; gaps under a long prefill.

``p99_ratio_slo_vs_fcfs``, ``slo_attainment`` and ``max_wait_ratio`` come from the simulated engine (loadtest.simulate: real queue,
scheduler and KV cache, a step-time model instead of the forward pass), so they are the same in every run. Arrivals and lengths are
those of the Azure LLM inference traces of 2023, stretched in time to 0.9 of the knee load. The knee load is where throughput over
mean latency is highest (Kleinrock's power) among the loads tried under FCFS on the same trace. A wait is the time to the first
token; ``max_start_wait_ratio`` is that until the first chunk, where an FCFS wait of less than one full step counts as one.
Nothing is known of an answer's length beforehand: the traces state no limits, so every request has the rest of the context.
"""

from __future__ import annotations

import csv
import gc
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Any

from build_engines.ensure import ensure_engines
from build_engines.progress import make_reporter
from loadtest.bench import Progress
from loadtest.bench.workload import prompts
from loadtest.simulate import Arrival, EngineLimits, Served, SimulatedEngine, StepTime, first_come_first_served
from tandem.config import tandem_home
from tandem.engine import EngineConfig, LLMEngine
from tandem.engine.waiting import SloOrder, WaitingQueue
from tandem.errors import SetupError
from tandem.models.openvino_decoder import load_decoder
from tandem.types import EngineRequest, RequestId, SamplingParams

TRACES_DIR = Path(__file__).resolve().parents[3] / "shared" / "data" / "azure2023"
# From the measured decode steps of one machine (INT8, 2 AVX2 cores): 15 to 59 ms at batch 1 to 16, 440 to 630 prompt tokens/s.
STEP_TIME = StepTime(base_ms=12.0, decode_ms=3.0, prefill_ms=2.0)
LIMITS = EngineLimits()
SLO_TTFT_MS = 2000
_LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_QUEUE_LENGTHS = (100, 1000, 10000)
_NUM_CHATS, _NUM_PREFILL_TOKENS = 16, 6000


def slo_order(clock_s: Callable[[], float]) -> WaitingQueue:
    return SloOrder(slo_ttft_ms=SLO_TTFT_MS, tokens_per_step=LIMITS.max_num_batched_tokens, clock_s=clock_s)


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    """Measure; ``quick`` takes the start of the traces and few steps, and is for trying out only."""
    result: dict[str, Any] = {
        "method": "simulated: real queue, scheduler and KV cache; step-time model; deterministic",
        "step_time_model": asdict(STEP_TIME),
        "limits": asdict(LIMITS),
        "slo_ttft_ms": SLO_TTFT_MS,
    }
    traces = {name: _compare(name, 1500 if quick else None, progress) for name in ("code", "conv")}
    for key in ("p99_ratio_slo_vs_fcfs", "slo_attainment", "max_wait_ratio"):
        result[key] = {name: trace[key] for name, trace in traces.items()}
    result["traces"] = traces
    result["scheduler_us_per_step"] = {str(length): _us_per_step(length, 50 if quick else 500) for length in _QUEUE_LENGTHS}
    progress(f"scheduler us per step: {result['scheduler_us_per_step']}")
    result.update(_gaps(quick, progress))
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
    busy_s = sum(_work_ms(arrival) for arrival in arrivals) / 1e3
    factor = busy_s / load / max(arrivals[-1].at_s, 1e-9)
    return [replace(arrival, at_s=arrival.at_s * factor) for arrival in arrivals]


def _work_ms(arrival: Arrival) -> float:
    """What a request adds to the steps: its tokens, and its part of their base at a full budget."""
    num_steps = arrival.num_prompt_tokens / LIMITS.max_num_batched_tokens
    return (
        num_steps * STEP_TIME.base_ms
        + arrival.num_prompt_tokens * STEP_TIME.prefill_ms
        + arrival.num_output_tokens * STEP_TIME.decode_ms
    )


def _simulate(make_queue: Callable[[Callable[[], float]], WaitingQueue], arrivals: Sequence[Arrival]) -> list[Served]:
    return SimulatedEngine(LIMITS, STEP_TIME, make_queue).run(arrivals)


def find_knee(arrivals: Sequence[Arrival], progress: Progress) -> float:
    """The load with the highest throughput over mean latency under FCFS."""
    power = {}
    for load in _LOADS:
        served = _simulate(first_come_first_served, at_load(arrivals, load))
        power[load] = len(served) / max(one.end_s for one in served) / mean(one.e2e_s for one in served)
        progress(f"load {load}: power {power[load]:.5f}")
    return max(power, key=lambda load: power[load])


def _compare(name: str, num_requests: int | None, progress: Progress) -> dict[str, Any]:
    arrivals = load_trace(name, num_requests)
    knee = find_knee(arrivals, progress)
    scaled = at_load(arrivals, 0.9 * knee)
    fcfs, slo = _simulate(first_come_first_served, scaled), _simulate(slo_order, scaled)
    step_s = STEP_TIME.of(LIMITS.max_num_seqs, LIMITS.max_num_batched_tokens - LIMITS.max_num_seqs) / 1e3
    figures: dict[str, Callable[[Served], float]] = {
        "ttft": lambda one: one.ttft_s,
        "norm_latency": lambda one: one.norm_latency_s,
        "e2e": lambda one: one.e2e_s,
    }
    result: dict[str, Any] = {
        "num_requests": len(scaled),
        "knee_load": knee,
        "p99_ratio_slo_vs_fcfs": {key: round(_p99(slo, of) / _p99(fcfs, of), 3) for key, of in figures.items()},
        "mean_ratio_slo_vs_fcfs": {key: round(mean(map(of, slo)) / mean(map(of, fcfs)), 3) for key, of in figures.items()},
        "fcfs_p99_s": {key: round(_p99(fcfs, of), 2) for key, of in figures.items()},
        "slo_attainment": {
            policy: round(sum(one.ttft_s * 1e3 <= SLO_TTFT_MS for one in served) / len(served), 3)
            for policy, served in (("fcfs", fcfs), ("slo", slo))
        },
        "max_wait_ratio": round(max(a.ttft_s / b.ttft_s for a, b in zip(slo, fcfs, strict=True)), 2),
        "max_start_wait_ratio": round(max(a.wait_s / max(b.wait_s, step_s) for a, b in zip(slo, fcfs, strict=True)), 2),
    }
    progress(f"{name}: {result}")
    return result


def _p99(served: Sequence[Served], of: Callable[[Served], float]) -> float:
    values = sorted(map(of, served))
    return values[int(0.99 * (len(values) - 1))]


def _us_per_step(num_waiting: int, num_steps: int) -> float:
    """Median time to plan a step while so many wait, with 8 sequences running and others ending and starting."""
    rng = random.Random(num_waiting)
    engine = SimulatedEngine(LIMITS, STEP_TIME, slo_order)
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


def _gaps(quick: bool, progress: Progress) -> dict[str, Any]:
    """Real engine, budget of the cpu profile: short chats decode while one long prompt is computed."""
    num_threads = os.cpu_count() or 1
    folder = ensure_engines(tandem_home(), None, None, make_reporter())["fast_int8"]
    num_blocks = LIMITS.num_kv_tokens // 32
    decoder = load_decoder(folder, kv_cache_dtype="f16", num_blocks=num_blocks, num_threads=num_threads)
    engine = LLMEngine(
        decoder,
        EngineConfig(
            max_num_seqs=_NUM_CHATS + 1,
            max_num_batched_tokens=LIMITS.max_num_batched_tokens,
            scheduling_policy="slo",
            has_prefix_cache=False,
        ),
    )
    num_long = 600 if quick else _NUM_PREFILL_TOKENS
    num_quiet = 10 if quick else 40

    def add(name: str, prompt: tuple[int, ...], max_tokens: int) -> None:
        engine.add(engine.prepare(EngineRequest(RequestId(name), prompt, SamplingParams(max_tokens=max_tokens))))

    for number, prompt in enumerate(prompts(_NUM_CHATS, 32)):
        add(str(number), prompt, 400)
    while engine.stats().num_generated_tokens < 2 * _NUM_CHATS:
        engine.step()
    quiet = [_timed(engine)[0] for _ in range(num_quiet)]
    add("long", prompts(_NUM_CHATS + 1, num_long)[-1], 1)
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
