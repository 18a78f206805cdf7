"""``tandem bench kv``: what the data type of the KV cache costs and saves, on the engines of this machine.

``bytes_per_token`` is what a decoder really allocates, scales included; ``capacity_ratio`` how many times more tokens fit into the
same memory with u8 than with f16. ``tpot_ratio`` is the time per decode step of 8 sequences, u8 over f16: the median of the ratios
of single steps, taken in turns.
``token_agreement`` is the share of positions of given texts at which u8 and f16 have the same best next token;
``perplexity_change`` the relative change of the perplexity of the same texts. Both read the text in chunks of 64 tokens.
``greedy_agreement`` is stricter: the share of greedily generated tokens up to the first one that differs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from build_engines.ensure import ensure_engines
from build_engines.progress import make_reporter
from loadtest.bench import Progress
from loadtest.bench.turns import median_ratio
from tandem.config import tandem_home
from tandem.engine import EngineConfig, LLMEngine
from tandem.models.decoder import Decoder, DecoderBatch
from tandem.models.openvino_decoder import KV_CACHE_DTYPES, load_decoder
from tandem.text.tokenizer import Tokenizer
from tandem.types import EngineRequest, RequestId, SamplingParams

_TEXTS = Path(__file__).resolve().parents[2] / "build_engines" / "calibration.json"
_BATCH, _NUM_PROMPT_TOKENS, _NUM_OUTPUT_TOKENS = 8, 256, 64
_CHUNK_TOKENS = 64
_MAX_TEXT_TOKENS = 2048
_NUM_BLOCKS = 160


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    """Measure; ``quick`` takes fewer rounds and less text and is for trying out only."""
    engine_dirs = ensure_engines(tandem_home(), None, None, make_reporter())
    engines = {name: _measure(name, engine_dirs[name], quick, progress) for name in ("fast_int4", "fast_int8")}
    # The keys at the top are those of the engine that bulk work goes to.
    return {**engines["fast_int4"], "num_threads": os.cpu_count() or 1, "engines": engines}


def _measure(name: str, engine_dir: Path, quick: bool, progress: Progress) -> dict[str, Any]:
    decoders = {
        dtype: load_decoder(engine_dir, kv_cache_dtype=dtype, num_blocks=_NUM_BLOCKS, num_threads=os.cpu_count() or 1)
        for dtype in KV_CACHE_DTYPES
    }
    sizes = {dtype: decoder.info.kv_bytes_per_token for dtype, decoder in decoders.items()}
    token_ids = _text_ids(engine_dir)[: 512 if quick else _MAX_TEXT_TOKENS]
    scores = {}
    for dtype, decoder in decoders.items():
        scores[dtype] = _score(decoder, token_ids)
        progress(f"{name}, {dtype}: perplexity {scores[dtype][0]:.3f} of {len(token_ids)} tokens")
    runs = {dtype: _Run(decoders[dtype], token_ids) for dtype in ("f16", "u8")}
    figures = {dtype: list[float]() for dtype in runs}
    for round_number in range(2 if quick else 6):
        times = _take_turns(runs)
        progress(f"{name}, ms per step of {_BATCH}: " + ", ".join(f"{dtype} {median(each):.1f}" for dtype, each in times.items()))
        if round_number > 0:  # the first one warms up
            for dtype, each in times.items():
                figures[dtype] += each
    perplexity = {dtype: score[0] for dtype, score in scores.items()}
    return {
        "bytes_per_token": sizes,
        "u8_vs_f16_bytes": round(sizes["u8"] / sizes["f16"], 4),
        "capacity_ratio": round(sizes["f16"] / sizes["u8"], 3),
        "step_ms": {dtype: round(median(values), 2) for dtype, values in figures.items()},
        "tpot_ratio": round(median_ratio(figures["u8"], figures["f16"]), 3),
        "token_agreement": round(float(np.mean(scores["u8"][1] == scores["f16"][1])), 4),
        "f16_vs_f32_agreement": round(float(np.mean(scores["f16"][1] == scores["f32"][1])), 4),
        "perplexity": {dtype: round(value, 3) for dtype, value in perplexity.items()},
        "perplexity_change": round(perplexity["u8"] / perplexity["f16"] - 1.0, 5),
        "greedy_agreement": round(_agreement(runs["f16"].tokens, runs["u8"].tokens), 4),
        "num_text_tokens": len(token_ids),
    }


class _Run:
    """The same batch of requests again and again on one decoder, without prefix cache; keeps the tokens of the last time."""

    def __init__(self, decoder: Decoder, token_ids: list[int]) -> None:
        config = EngineConfig(max_num_seqs=_BATCH, max_num_batched_tokens=256, has_prefix_cache=False)
        self._engine = LLMEngine(decoder, config)
        step = len(token_ids) // _BATCH
        begins = [min(number * step, len(token_ids) - _NUM_PROMPT_TOKENS) for number in range(_BATCH)]
        self._prompts = [tuple(token_ids[begin : begin + _NUM_PROMPT_TOKENS]) for begin in begins]
        self._answers: dict[str, list[int]] = {}

    @property
    def tokens(self) -> list[list[int]]:
        return list(self._answers.values())

    def start(self) -> None:
        """Prefill all prompts, up to the first token of each."""
        self._answers = {str(number): [] for number in range(_BATCH)}
        for number, prompt in enumerate(self._prompts):
            sampling = SamplingParams(max_tokens=_NUM_OUTPUT_TOKENS)
            self._engine.add(self._engine.prepare(EngineRequest(RequestId(str(number)), prompt, sampling)))
        while not all(self._answers.values()):
            self.step_ms()

    def step_ms(self) -> float:
        started = time.perf_counter()
        deltas = self._engine.step()
        elapsed_s = time.perf_counter() - started
        for delta in deltas:
            self._answers[delta.request_id] += delta.token_ids
        return elapsed_s * 1e3

    @property
    def is_whole(self) -> bool:
        """All sequences still decode."""
        return self._engine.stats().num_running == _BATCH

    def finish(self) -> None:
        while self._engine.has_work:
            self.step_ms()


def _take_turns(runs: Mapping[str, _Run]) -> dict[str, list[float]]:
    """Times of single decode steps, one engine after the other, so that a slow moment of the machine weighs on all alike."""
    for run in runs.values():
        run.start()
    times = {name: list[float]() for name in runs}
    while all(run.is_whole for run in runs.values()):
        for name, run in runs.items():
            times[name].append(run.step_ms())
    for run in runs.values():
        run.finish()
    return times


def _score(decoder: Decoder, token_ids: list[int]) -> tuple[float, np.ndarray[Any, Any]]:
    """Perplexity of a text, and the best next token at each of its positions."""
    ids = np.array(token_ids, np.int64)
    total_log_prob = 0.0
    best = np.zeros(len(ids), np.int64)
    blocks = np.arange(decoder.info.num_blocks, dtype=np.int32)
    for begin in range(0, len(ids), _CHUNK_TOKENS):
        end = min(begin + _CHUNK_TOKENS, len(ids))
        num_blocks = -(-end // decoder.info.block_size)
        output = decoder.forward(
            DecoderBatch(
                input_ids=ids[begin:end],
                position_ids=np.arange(begin, end),
                past_lens=np.array([begin], np.int32),
                subsequence_begins=np.array([0, end - begin], np.int32),
                block_indices=blocks[:num_blocks],
                block_indices_begins=np.array([0, num_blocks], np.int32),
                max_context_len=end,
                sample_idx=np.arange(end - begin),
            )
        )
        best[begin:end] = output.argmax
        following = ids[begin + 1 : end + 1]
        rows = np.arange(len(following))
        total_log_prob += float((output.logits[rows, following] - output.log_sum_exp[: len(following)]).sum())
    return float(np.exp(-total_log_prob / (len(ids) - 1))), best


def _text_ids(engine_dir: Path) -> list[int]:
    """The calibration texts in one line: prose, dialogue, code, lists."""
    texts: list[str] = json.loads(_TEXTS.read_text(encoding="utf-8"))
    return list(Tokenizer.load(engine_dir).encode("\n\n".join(texts), add_special_tokens=False))


def _agreement(first: list[list[int]], second: list[list[int]]) -> float:
    """Share of tokens before the first difference of each pair."""
    num_equal = 0
    for one, other in zip(first, second, strict=True):
        differences = [position for position, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
        num_equal += differences[0] if differences else len(one)
    return num_equal / sum(map(len, first))
