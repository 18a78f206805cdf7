"""Choose the next token of every row of a step, and report how probable it was.

Greedy rows that no processor touches take the decoder's argmax and never look at the logits.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np

from tandem.engine.draw import BlockedRow, TokenDrawer
from tandem.engine.sequence import Sequence
from tandem.models.decoder import DecoderOutput, FloatArray
from tandem.types import TokenLogProbs

LOG_PROB_FLOOR = -9999.0
"""Reported instead of a lower log-probability (JSON has no minus infinity); the value OpenAI uses for "very unlikely"."""


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One entry per sampled sequence. ``token_ids`` is None where the row held no usable number.

    Entropies (nats) and log-probabilities are of the distribution before any processor: a masked token's value is what the model
    gave it, so the numbers are always finite and comparable between requests (as with normalize_log_probs=false in TensorRT-LLM).
    """

    token_ids: list[int | None]
    entropies: list[float]
    log_probs: list[float]
    top: list[tuple[TokenLogProbs, ...]]


class Sampler:
    """Owns scratch memory only; what it must remember of a sequence lives in the sequence. Not thread-safe."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._scratch: _Scratch | None = None

    def sample(self, sequences: Seq[Sequence], rows: Seq[int], output: DecoderOutput) -> SampledTokens:
        """Choose a token for each sequence from ``output`` row ``rows[i]``; several sequences may share a row. Modifies nothing."""
        is_usable = (np.isfinite(output.log_sum_exp) & np.isfinite(output.entropy)).tolist()
        argmax: list[int] = output.argmax.tolist()
        token_ids: list[int | None] = []
        for sequence, row in zip(sequences, rows, strict=True):
            if not is_usable[row]:
                token_ids.append(None)
            elif sequence.is_plain_greedy:
                token_ids.append(argmax[row])
            else:
                token_ids.append(self._choose(sequence, output.logits[row], argmax[row]))
        entropy = np.maximum(output.entropy, 0.0).tolist()
        return SampledTokens(
            token_ids,
            [entropy[row] for row in rows],
            self._log_probs(sequences, rows, token_ids, output),
            [self._top(sequence, row, output) for sequence, row in zip(sequences, rows, strict=True)],
        )

    def _choose(self, sequence: Sequence, logits: FloatArray, argmax: int) -> int | None:
        scratch = self._scratch_for(logits)
        processors, params = sequence.processors, sequence.params
        banned = processors.banned_ids(sequence.output_ids)
        if processors.changes_logits(banned):
            scratch.logits[:] = logits
            logits = scratch.logits
            processors.apply(logits, banned)
            argmax = int(logits.argmax())
            if not np.isfinite(logits[argmax]):
                return None
        if sequence.is_greedy:
            return argmax
        return scratch.drawer.draw(
            logits,
            argmax,
            sequence.random.uniform(sequence.num_output_tokens),
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
        )

    def _log_probs(
        self, sequences: Seq[Sequence], rows: Seq[int], token_ids: Seq[int | None], output: DecoderOutput
    ) -> list[float]:
        if not any(sequence.params.return_log_probs for sequence in sequences):
            return [0.0] * len(rows)
        values = output.logits[rows, [token or 0 for token in token_ids]] - output.log_sum_exp[list(rows)]
        log_probs: list[float] = np.clip(values, LOG_PROB_FLOOR, 0.0).tolist()
        return log_probs

    def _top(self, sequence: Sequence, row: int, output: DecoderOutput) -> tuple[TokenLogProbs, ...]:
        count = sequence.params.top_logprobs
        if count == 0:
            return ()
        logits = output.logits[row]
        blocked = self._scratch_for(logits).row
        blocked.fill(logits, logits.max())
        ids = blocked.top_ids(count)
        values = np.clip(logits[ids] - output.log_sum_exp[row], LOG_PROB_FLOOR, 0.0)
        return (TokenLogProbs(tuple(ids.tolist()), tuple(values.tolist())),)

    def _scratch_for(self, logits: FloatArray) -> _Scratch:
        if self._scratch is None or self._scratch.logits.dtype != logits.dtype:
            self._scratch = _Scratch(self._vocab_size, logits.dtype)
        return self._scratch


class _Scratch:
    """Memory for one row at a time, in the precision of the decoder's logits."""

    def __init__(self, vocab_size: int, dtype: np.dtype[np.floating[Any]]) -> None:
        self.logits: FloatArray = np.zeros(vocab_size, dtype)  # the row as the processors change it
        self.row = BlockedRow(vocab_size, dtype)
        self.drawer = TokenDrawer(self.row)
