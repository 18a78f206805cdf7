"""How well the LLM scorer tells hard from easy prompts, and its Platt calibration; runs the engine in this process.

The rows are dictionaries with ``prompt`` and ``fast`` (the fast path suffices). The calibration is fitted on every other row and
judged on the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tandem.engine import EngineConfig, LLMEngine
from tandem.models.openvino_decoder import load_decoder
from tandem.orchestration.scorer import ScorerPrompt, expected_digit
from tandem.routing.claims import neutral
from tandem.text.tokenizer import Tokenizer
from tandem.types import EngineRequest, RequestId, SamplingParams, SequenceDelta

Floats = npt.NDArray[np.float64]


def measure(engine_dir: Path, rows: Sequence[Mapping[str, Any]], *, max_text_tokens: int, num_threads: int) -> dict[str, Any]:
    """AUC of "hard", the fitted slope and intercept, and what the calibrated score is worth on the held-out half."""
    prompt = ScorerPrompt(Tokenizer.load(engine_dir))
    decoder = load_decoder(engine_dir, kv_cache_dtype="f16", num_blocks=128, num_threads=num_threads)
    engine = LLMEngine(decoder, EngineConfig(max_num_seqs=1, max_num_batched_tokens=256))
    raw = np.array([_raw(engine, prompt, neutral(row["prompt"]) or row["prompt"], max_text_tokens) for row in rows])
    is_fast = np.array([bool(row["fast"]) for row in rows])
    slope, intercept = fit_platt(raw[::2], is_fast[::2])
    score = 1.0 / (1.0 + np.exp(-(slope * raw[1::2] + intercept)))
    held_out = is_fast[1::2]
    return {
        "num_prompts": len(rows),
        "auc": round(auc(raw[~is_fast], raw[is_fast]), 3),
        "slope": round(slope, 2),
        "intercept": round(intercept, 2),
        "held_out": {
            "accuracy": round(float(np.mean((score > 0.5) == held_out)), 3),
            "majority": round(float(max(held_out.mean(), 1 - held_out.mean())), 3),
            "brier": round(float(np.mean((score - held_out) ** 2)), 3),
        },
    }


def auc(positive: Floats, negative: Floats) -> float:
    """The chance that a positive scores above a negative; ties count half."""
    above = positive[:, None] > negative[None, :]
    return float((above + 0.5 * (positive[:, None] == negative[None, :])).mean())


def fit_platt(raw: Floats, is_fast: npt.NDArray[np.bool_], *, steps: int = 200) -> tuple[float, float]:
    """Slope and intercept of the logistic regression, by Newton's method with a small ridge."""
    x, weights = np.stack([raw, np.ones_like(raw)], axis=1), np.zeros(2)
    for _ in range(steps):
        p = 1.0 / (1.0 + np.exp(-(x @ weights)))
        gradient = x.T @ (p - is_fast) + 1e-3 * weights
        hessian = (x * (p * (1 - p))[:, None]).T @ x + 1e-3 * np.eye(2)
        weights -= np.linalg.solve(hessian, gradient)
    return float(weights[0]), float(weights[1])


def _raw(engine: LLMEngine, prompt: ScorerPrompt, text: str, max_text_tokens: int) -> float:
    sampling = SamplingParams(max_tokens=1, return_log_probs=True, top_logprobs=20)
    request = EngineRequest(RequestId("scorer"), prompt.encode(text, max_text_tokens), sampling)
    engine.add(engine.prepare(request))
    found: list[SequenceDelta] = []
    while engine.has_work:
        found += [delta for delta in engine.step() if delta.token_ids]
    raw = expected_digit(found[0], prompt.digit_ids) / 9.0
    assert math.isfinite(raw)
    return raw
