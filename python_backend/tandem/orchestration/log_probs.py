"""Log-probabilities of generated tokens in the form of OpenAI's ``logprobs.content``, as strict JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from tandem.text.tokenizer import Tokenizer
from tandem.types import TokenLogProbs

LOG_PROB_FLOOR = -9999.0
"""Stands for every log-probability that is lower, minus infinity, or no number: JSON has none of these. The value OpenAI uses."""


@dataclass(frozen=True, slots=True)
class TokenReport:
    """What is told of one generated token. ``log_prob`` is finite and at most 0; ``top`` best first, empty unless asked for."""

    token_id: int
    log_prob: float
    top: TokenLogProbs


def finite_log_prob(value: float) -> float:
    """``value`` within [LOG_PROB_FLOOR, 0]. Rounding in a kernel may put it a little above 0."""
    if math.isnan(value):
        return LOG_PROB_FLOOR
    return min(max(value, LOG_PROB_FLOOR), 0.0)


def content_json(reports: Sequence[TokenReport], tokenizer: Tokenizer) -> str:
    """JSON array of {token, bytes, logprob, top_logprobs}; ``bytes`` is exact where a token is only part of a character."""
    content = [
        _entry(report.token_id, report.log_prob, tokenizer)
        | {
            "top_logprobs": [
                _entry(token_id, finite_log_prob(log_prob), tokenizer)
                for token_id, log_prob in zip(report.top.ids, report.top.log_probs, strict=True)
            ]
        }
        for report in reports
    ]
    return orjson.dumps(content).decode()


def _entry(token_id: int, log_prob: float, tokenizer: Tokenizer) -> dict[str, object]:
    piece = tokenizer.piece(token_id)
    return {"token": piece.decode("utf-8", errors="replace"), "bytes": list(piece), "logprob": log_prob}
