"""``tandem bench prefix``: what a cached prefix saves, and how much of a real trace the pool finds again.

``ttft_ms_cold`` and ``ttft_ms_hit`` are the times from handing a request of 2,000 shared and 32 own tokens to the INT8 engine until
its first token, with the shared part unknown and known; both are taken in turns and ``reduction`` is 1 - the median of hit / cold.

``hit_rate_vs_ideal`` is the hit rate of the engine's own block pool on the Mooncake conversation trace, lengths scaled to the
context, over that of an ideal LRU cache of the same number of blocks (:mod:`loadtest.bench.prefix_trace`). ``trace`` has the rates
themselves, for the pool of the cpu profile and for larger ones, beside what a cache that knows the future could reach. It is null,
with ``trace_missing`` as the reason, where the trace is not there.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from build_engines.ensure import ensure_engines
from build_engines.progress import make_reporter
from loadtest.bench import Progress
from loadtest.bench.prefix_trace import TRACE, hit_rates, lru_hit_rate, read_trace
from loadtest.bench.turns import median_ratio, take_turns
from loadtest.bench.workload import prompts
from tandem.config import tandem_home
from tandem.engine import EngineConfig, LLMEngine
from tandem.models.openvino_decoder import load_decoder
from tandem.types import EngineRequest, RequestId, SamplingParams, SequenceDelta

NUM_SHARED_TOKENS, _NUM_OWN_TOKENS = 2000, 32
_NUM_BLOCKS = 512  # 16,384 tokens: max_tokens_in_paged_kv_cache of the cpu profile
_TRACE_SIZES = (_NUM_BLOCKS, 2048, 8192, 32768)
_BLOCK_SIZE, _MAX_SEQ_LEN = 32, 8192


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    """Measure; ``quick`` takes fewer rounds and the first 2,000 requests of the trace and is for trying out only."""
    return {**_measure_ttft(quick, progress), **_replay_trace(quick, progress)}


def _measure_ttft(quick: bool, progress: Progress) -> dict[str, Any]:
    engine_dir = ensure_engines(tandem_home(), None, None, make_reporter())["fast_int8"]
    num_threads = os.cpu_count() or 1
    decoder = load_decoder(engine_dir, kv_cache_dtype="f16", num_blocks=_NUM_BLOCKS, num_threads=num_threads)
    engine = LLMEngine(decoder, EngineConfig(max_num_batched_tokens=256))
    cached: list[int] = []
    # Prompts that differ from the first token on; the first is the shared prefix, each other one is met once.
    texts = iter(prompts(64, NUM_SHARED_TOKENS + _NUM_OWN_TOKENS))
    shared = next(texts)[:NUM_SHARED_TOKENS]
    _ttft_ms(engine, "warm-up", shared, [])
    numbers = itertools.count()

    def hit() -> float:
        return _ttft_ms(engine, f"hit {next(numbers)}", shared + next(texts)[:_NUM_OWN_TOKENS], cached)

    candidates: dict[str, Callable[[], float]] = {
        "cold": lambda: _ttft_ms(engine, f"cold {next(numbers)}", next(texts), cached),
        "hit": hit,
    }
    figures = take_turns(candidates, num_rounds=2 if quick else 7, what="TTFT ms", progress=progress)
    # Whole blocks of the shared part, nothing of the others.
    assert set(cached) == {0, NUM_SHARED_TOKENS // decoder.info.block_size * decoder.info.block_size}, cached
    return {
        "ttft_ms_cold": round(median(figures["cold"]), 1),
        "ttft_ms_hit": round(median(figures["hit"]), 1),
        "reduction": round(1.0 - median_ratio(figures["hit"], figures["cold"]), 4),
        "num_cached_tokens": max(cached),
        "num_threads": num_threads,
    }


def _ttft_ms(engine: LLMEngine, name: str, prompt: tuple[int, ...], cached: list[int]) -> float:
    started = time.perf_counter()
    engine.add(engine.prepare(EngineRequest(RequestId(name), prompt, SamplingParams(max_tokens=1))))
    deltas: list[SequenceDelta] = []
    while not deltas:
        deltas = engine.step()
    cached.append(deltas[0].num_cached_tokens)
    return (time.perf_counter() - started) * 1e3


def _replay_trace(quick: bool, progress: Progress) -> dict[str, Any]:
    if not TRACE.is_file():
        return {
            "hit_rate_vs_ideal": None,
            "trace_missing": "shared/data/mooncake/conversation_trace.jsonl.gz is not beside the checkout",
        }
    requests = read_trace(TRACE, _BLOCK_SIZE, _MAX_SEQ_LEN, 2000 if quick else None)
    found = {}
    for num_blocks, rates in hit_rates(requests, _TRACE_SIZES[:2] if quick else _TRACE_SIZES, _BLOCK_SIZE):
        found[str(num_blocks)] = {name: round(rate, 4) for name, rate in rates.items()}
        found[str(num_blocks)]["vs_ideal"] = round(rates["pool"] / rates["ideal_lru"], 4)
        progress(f"trace, {num_blocks} blocks: {found[str(num_blocks)]}")
    return {
        "hit_rate_vs_ideal": found[str(_NUM_BLOCKS)]["vs_ideal"],
        "trace": found,
        "trace_unbounded": round(lru_hit_rate(requests, None), 4),
        "num_trace_requests": len(requests),
    }
