"""``tandem bench engine``: the CPU engine alone, beside openvino-genai and llama.cpp on the same weights.

Every candidate gets the same prompts (64 tokens) and makes 128 tokens of each, greedily and without an end token. ``decode_tok_s``
counts generated tokens per second of the whole run, prefill included, for 1, 4, 16 and 32 requests at once. ``vs_*`` are medians of
the ratios round by round (above 1: Tandem is faster). A peer that is not installed gives null; ``make bench`` installs both.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from build_engines.ensure import ensure_engines
from build_engines.progress import make_reporter
from build_engines.weights import default_weights
from loadtest.bench import Progress
from loadtest.bench.turns import median_ratio, take_turns
from loadtest.bench.workload import NUM_OUTPUT_TOKENS, NUM_PREFILL_TOKENS, NUM_PROMPT_TOKENS, prompts
from tandem.config import tandem_home
from tandem.engine import EngineConfig, LLMEngine
from tandem.models.openvino_decoder import load_decoder
from tandem.types import EngineRequest, RequestId, SamplingParams

_BATCHES = (1, 4, 16, 32)
_PEER_BATCHES = (1, 16)
_MAIN_ENGINE = "fast_int8"
_OTHER_ENGINES = ("fast_int4", "slow")
_KV_CACHE_DTYPE = "f16"
_NUM_BLOCKS = 32 * (NUM_PROMPT_TOKENS + NUM_OUTPUT_TOKENS) // 32 + 64


class TandemEngine:
    """Our engine on one engine folder, stepped in this thread."""

    def __init__(self, engine_dir: Path, num_threads: int) -> None:
        decoder = load_decoder(engine_dir, kv_cache_dtype=_KV_CACHE_DTYPE, num_blocks=_NUM_BLOCKS, num_threads=num_threads)
        self._engine = LLMEngine(decoder, EngineConfig(max_num_seqs=max(_BATCHES), max_num_batched_tokens=256))
        self._next_id = 0

    def tok_s(self, batch: list[tuple[int, ...]]) -> float:
        return len(batch) * NUM_OUTPUT_TOKENS / self._run(batch, NUM_OUTPUT_TOKENS)

    def prefill_tok_s(self) -> float:
        return NUM_PREFILL_TOKENS / self._run(prompts(1, NUM_PREFILL_TOKENS), 1)

    def overhead_ms_per_step(self, batch: list[tuple[int, ...]]) -> float:
        before = self._engine.stats()
        self._run(batch, NUM_OUTPUT_TOKENS)
        after = self._engine.stats()
        return (after.outside_time_s - before.outside_time_s) / (after.num_steps - before.num_steps) * 1e3

    def _run(self, batch: list[tuple[int, ...]], num_tokens: int) -> float:
        started = time.perf_counter()
        for prompt in batch:
            request = EngineRequest(RequestId(str(self._next_id)), prompt, SamplingParams(max_tokens=num_tokens))
            self._engine.add(self._engine.prepare(request))
            self._next_id += 1
        num_made = 0
        while self._engine.has_work:
            num_made += sum(len(delta.token_ids) for delta in self._engine.step())
        assert num_made == len(batch) * num_tokens, f"{num_made} tokens came back"
        return time.perf_counter() - started


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    """Measure; ``quick`` takes one round and is for trying out only. The peers run beside the INT8 engine, whose figures stand on top."""
    num_rounds = 1 if quick else 5
    num_threads = len(os.sched_getaffinity(0))
    engine_dirs = ensure_engines(tandem_home(), None, None, make_reporter())
    engines: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as work:
        genai, llama = _peers(engine_dirs[_MAIN_ENGINE], Path(work), num_threads)
        engines[_MAIN_ENGINE] = _measure(
            _MAIN_ENGINE, TandemEngine(engine_dirs[_MAIN_ENGINE], num_threads), genai, llama, num_rounds, progress
        )
        del genai, llama
    for name in _OTHER_ENGINES:
        engines[name] = _measure(name, TandemEngine(engine_dirs[name], num_threads), None, None, num_rounds, progress)
    return {**engines[_MAIN_ENGINE], "kv_cache_dtype": _KV_CACHE_DTYPE, "num_threads": num_threads, "engines": engines}


Measure = Callable[[list[tuple[int, ...]]], float]


def _measure(
    name: str, ours: TandemEngine, genai: Measure | None, llama: Measure | None, num_rounds: int, progress: Progress
) -> dict[str, Any]:
    decode: dict[str, float] = {}
    vs_genai: dict[str, float | None] = dict.fromkeys(map(str, _PEER_BATCHES))
    vs_llama: dict[str, float | None] = dict.fromkeys(map(str, _PEER_BATCHES))
    for size in _BATCHES:
        batch = prompts(size)
        candidates: dict[str, Callable[[], float]] = {"tandem": lambda batch=batch: ours.tok_s(batch)}  # type: ignore[misc]
        if size in _PEER_BATCHES and genai is not None:
            candidates["openvino-genai"] = lambda batch=batch: genai(batch)  # type: ignore[misc]
        if size in _PEER_BATCHES and llama is not None:
            candidates["llama.cpp"] = lambda batch=batch: llama(batch)  # type: ignore[misc]
        figures = take_turns(candidates, num_rounds=num_rounds, what=f"{name}, {size} at once, tok/s", progress=progress)
        decode[str(size)] = round(median(figures["tandem"]), 1)
        if "openvino-genai" in figures:
            vs_genai[str(size)] = round(median_ratio(figures["tandem"], figures["openvino-genai"]), 2)
        if "llama.cpp" in figures:
            vs_llama[str(size)] = round(median_ratio(figures["tandem"], figures["llama.cpp"]), 2)
    overheads = take_turns(
        {"tandem": lambda: ours.overhead_ms_per_step(prompts(16))},
        num_rounds=num_rounds,
        what=f"{name}, overhead ms",
        progress=progress,
    )
    prefills = take_turns({"tandem": ours.prefill_tok_s}, num_rounds=num_rounds, what=f"{name}, prefill tok/s", progress=progress)
    return {
        "decode_tok_s": decode,
        "overhead_ms_per_step": round(median(overheads["tandem"]), 3),
        "vs_openvino_genai": vs_genai,
        "vs_llama_cpp": vs_llama,
        "prefill_tok_s": round(median(prefills["tandem"]), 1),
    }


def _peers(engine_dir: Path, work_dir: Path, num_threads: int) -> tuple[Measure | None, Measure | None]:
    genai: Measure | None = None
    llama: Measure | None = None
    if importlib.util.find_spec("openvino_genai") is not None:
        from loadtest.bench.peers.openvino_genai import OpenVinoGenAi

        genai = OpenVinoGenAi(
            engine_dir,
            work_dir,
            kv_cache_dtype=_KV_CACHE_DTYPE,
            num_kv_blocks=_NUM_BLOCKS,
            max_num_seqs=max(_BATCHES),
            num_threads=num_threads,
        ).tok_s
    if importlib.util.find_spec("llama_cpp") is not None:
        from loadtest.bench.peers.llama_cpp import LlamaCpp

        num_context_tokens = max(_PEER_BATCHES) * (NUM_PROMPT_TOKENS + NUM_OUTPUT_TOKENS)
        llama = LlamaCpp(
            default_weights(), max_num_seqs=max(_PEER_BATCHES), num_context_tokens=num_context_tokens, num_threads=num_threads
        ).tok_s
    return genai, llama
