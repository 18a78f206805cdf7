"""``tandem bench engine``: the CPU engine alone, beside openvino-genai and llama.cpp on the same weights.

Every candidate gets the same prompts (64 tokens) and makes 128 tokens of each, greedily and without an end token. ``decode_tok_s``
counts generated tokens per second of the whole run, prefill included, for 1, 4, 16 and 32 requests at once; ``decode_step_ms`` is
the median step once all are decoding. ``vs_*`` are medians of the ratios round by round (above 1: Tandem is faster). A peer that is
not installed gives null; ``make bench`` installs both.

openvino-genai runs with the same precision: dynamic quantization of the activations off, as in our engines. What switching it on
would bring (at the price that tokens depend on the batch) stands under ``with_dynamic_quantization``.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
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

Batch = list[tuple[int, ...]]
Measure = Callable[[Batch], float]


class TandemEngine:
    """Our engine on one engine folder, stepped in this thread."""

    def __init__(self, engine_dir: Path, num_threads: int, *, has_dynamic_quantization: bool = False) -> None:
        decoder = load_decoder(
            engine_dir,
            kv_cache_dtype=_KV_CACHE_DTYPE,
            num_blocks=_NUM_BLOCKS,
            num_threads=num_threads,
            has_dynamic_quantization=has_dynamic_quantization,
        )
        # No prefix cache: the same prompts come round after round, and the peers compute them every time.
        config = EngineConfig(max_num_seqs=max(_BATCHES), max_num_batched_tokens=256, has_prefix_cache=False)
        self._engine = LLMEngine(decoder, config)
        self._next_id = 0
        self.decode_step_ms: dict[int, float] = {}  # batch size -> median of its last run

    def tok_s(self, batch: Batch) -> float:
        seconds, step_ms = self._run(batch, NUM_OUTPUT_TOKENS)
        self.decode_step_ms[len(batch)] = median(step_ms[-NUM_OUTPUT_TOKENS // 2 :])  # by then all decode
        return len(batch) * NUM_OUTPUT_TOKENS / seconds

    def prefill_tok_s(self) -> float:
        return NUM_PREFILL_TOKENS / self._run(prompts(1, NUM_PREFILL_TOKENS), 1)[0]

    def overhead_ms_per_step(self) -> float:
        before = self._engine.stats()
        self._run(prompts(16), NUM_OUTPUT_TOKENS)
        after = self._engine.stats()
        return (after.outside_time_s - before.outside_time_s) / (after.num_steps - before.num_steps) * 1e3

    def _run(self, batch: Batch, num_tokens: int) -> tuple[float, list[float]]:
        """Seconds from the first request to the last token, and the milliseconds of each step."""
        step_ms: list[float] = []
        num_made = 0
        started = time.perf_counter()
        for prompt in batch:
            request = EngineRequest(RequestId(str(self._next_id)), prompt, SamplingParams(max_tokens=num_tokens))
            self._engine.add(self._engine.prepare(request))
            self._next_id += 1
        while self._engine.has_work:
            step_started = time.perf_counter()
            num_made += sum(len(delta.token_ids) for delta in self._engine.step())
            step_ms.append((time.perf_counter() - step_started) * 1e3)
        assert num_made == len(batch) * num_tokens, f"{num_made} tokens came back"
        return time.perf_counter() - started, step_ms


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    """Measure; ``quick`` takes one round and is for trying out only. The peers run beside the INT8 engine, whose figures lead."""
    num_rounds = 1 if quick else 5
    num_threads = len(os.sched_getaffinity(0))
    engine_dirs = ensure_engines(tandem_home(), None, None, make_reporter())
    main_dir = engine_dirs[_MAIN_ENGINE]
    with tempfile.TemporaryDirectory() as work:
        dynamic = TandemEngine(main_dir, num_threads, has_dynamic_quantization=True)
        others = {"dynamic": dynamic.tok_s, **_peers(main_dir, Path(work), num_threads)}
        main = _measure(_MAIN_ENGINE, TandemEngine(main_dir, num_threads), others, num_rounds, progress)
        del others
    engines = {_MAIN_ENGINE: main}
    for name in _OTHER_ENGINES:
        engines[name] = _measure(name, TandemEngine(engine_dirs[name], num_threads), {}, num_rounds, progress)
    return {**main, "kv_cache_dtype": _KV_CACHE_DTYPE, "num_threads": num_threads, "engines": engines}


def _measure(name: str, ours: TandemEngine, others: Mapping[str, Measure], num_rounds: int, progress: Progress) -> dict[str, Any]:
    """All figures of one engine; ``others`` take turns with it at the sizes of ``_PEER_BATCHES``."""
    figures: dict[int, dict[str, list[float]]] = {}
    for size in _BATCHES:
        candidates = {"tandem": ours.tok_s, **(others if size in _PEER_BATCHES else {})}
        figures[size] = take_turns(
            {candidate: partial(measure, prompts(size)) for candidate, measure in candidates.items()},
            num_rounds=num_rounds,
            what=f"{name}, {size} at once, tok/s",
            progress=progress,
        )

    def only(what: str, measure: Callable[[], float]) -> float:
        return median(take_turns({"tandem": measure}, num_rounds=num_rounds, what=f"{name}, {what}", progress=progress)["tandem"])

    def ratios(candidate: str, baseline: str) -> dict[str, float | None]:
        return {
            str(size): round(median_ratio(figures[size][candidate], figures[size][baseline]), 2)
            if {candidate, baseline} <= figures[size].keys()
            else None
            for size in _PEER_BATCHES
        }

    result: dict[str, Any] = {
        "decode_tok_s": {str(size): round(median(figures[size]["tandem"]), 1) for size in _BATCHES},
        "decode_step_ms": {str(size): round(ours.decode_step_ms[size], 2) for size in _BATCHES},
        "overhead_ms_per_step": round(only("overhead in ms", ours.overhead_ms_per_step), 3),
        "vs_openvino_genai": ratios("tandem", "openvino-genai"),
        "vs_llama_cpp": ratios("tandem", "llama.cpp"),
        "prefill_tok_s": round(only("prefill in tok/s", ours.prefill_tok_s), 1),
    }
    if "dynamic" in others:
        result["with_dynamic_quantization"] = {
            "decode_tok_s": {str(size): round(median(figures[size]["dynamic"]), 1) for size in _PEER_BATCHES},
            "vs_llama_cpp": ratios("dynamic", "llama.cpp"),
        }
    return result


def _peers(engine_dir: Path, work_dir: Path, num_threads: int) -> dict[str, Measure]:
    """Those that are installed."""
    peers: dict[str, Measure] = {}
    if importlib.util.find_spec("openvino_genai") is not None:
        from loadtest.bench.peers.openvino_genai import OpenVinoGenAi

        peers["openvino-genai"] = OpenVinoGenAi(
            engine_dir,
            work_dir,
            kv_cache_dtype=_KV_CACHE_DTYPE,
            num_kv_blocks=_NUM_BLOCKS,
            max_num_seqs=max(_BATCHES),
            num_threads=num_threads,
        ).tok_s
    if importlib.util.find_spec("llama_cpp") is not None:
        from loadtest.bench.peers.llama_cpp import LlamaCpp

        peers["llama.cpp"] = LlamaCpp(
            default_weights(),
            max_num_seqs=max(_PEER_BATCHES),
            num_context_tokens=max(_PEER_BATCHES) * (NUM_PROMPT_TOKENS + NUM_OUTPUT_TOKENS),
            num_threads=num_threads,
        ).tok_s
    return peers
