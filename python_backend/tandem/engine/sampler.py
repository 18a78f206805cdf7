"""Choose the next token of every row of a step, and report how probable it was.

Greedy rows that no processor touches take the decoder's argmax and never look at the logits. A guided row looks at them only when
the argmax is not allowed, or when it is sampled or processed: most tokens a model wants to write are tokens its guide allows.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np

from tandem.engine.draw import BlockedRow, TokenDrawer
from tandem.engine.sequence import Sequence
from tandem.errors import EngineFailure, InvalidRequest, TandemError
from tandem.guided.matcher import TokenMask
from tandem.models.decoder import DecoderOutput, FloatArray
from tandem.types import FORCED_ENTROPY, TokenLogProbs

LOG_PROB_FLOOR = -9999.0
"""Reported instead of a lower log-probability (JSON has no minus infinity); the value OpenAI uses for "very unlikely"."""


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One entry per sampled sequence. ``token_ids`` holds an error where no token could be chosen.

    Entropies (nats) and log-probabilities are of the distribution before any processor and any mask: a masked token's value is what
    the model gave it, so the numbers are always finite and comparable between requests (as with normalize_log_probs=false in
    TensorRT-LLM). The entropy of a token that a guide left no alternative to is FORCED_ENTROPY. ``top`` leaves out what it forbids.
    """

    token_ids: list[int | TandemError]
    entropies: list[float]
    log_probs: list[float]
    top: list[tuple[TokenLogProbs, ...]]


class Sampler:
    """Owns scratch memory only; what it must remember of a sequence lives in the sequence. Not thread-safe."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._scratch: _Scratch | None = None
        self._mask = TokenMask(vocab_size)

    def sample(self, sequences: Seq[Sequence], rows: Seq[int], output: DecoderOutput) -> SampledTokens:
        """Choose a token for each sequence from ``output`` row ``rows[i]``; several sequences may share a row. Modifies nothing."""
        is_usable = (np.isfinite(output.log_sum_exp) & np.isfinite(output.entropy)).tolist()
        argmax: list[int] = output.argmax.tolist()
        entropy = np.maximum(output.entropy, 0.0).tolist()
        tokens = SampledTokens([], [], [], [])
        for sequence, row in zip(sequences, rows, strict=True):
            chosen: int | TandemError
            top: tuple[TokenLogProbs, ...] = ()
            row_entropy = entropy[row]
            if not is_usable[row]:
                chosen = _unusable()
            elif sequence.is_plain_greedy:
                chosen = argmax[row]
                top = self._top(sequence, row, output, None)
            else:
                mask, error = self._mask_of(sequence)
                if error is None:
                    chosen = self._choose(sequence, output.logits[row], argmax[row], mask)
                    top = self._top(sequence, row, output, mask)
                    if mask is not None and mask.has_one:
                        row_entropy = FORCED_ENTROPY
                else:
                    chosen = error
            tokens.token_ids.append(chosen)
            tokens.entropies.append(row_entropy)
            tokens.top.append(top)
        tokens.log_probs.extend(self._log_probs(sequences, rows, tokens.token_ids, output))
        return tokens

    def _mask_of(self, sequence: Sequence) -> tuple[TokenMask | None, TandemError | None]:
        """What the guide of a sequence allows next; None where it has none. Valid until the next call."""
        if sequence.matcher is None:
            return None, None
        try:
            sequence.matcher.fill(self._mask, sequence.request.end_id)
        except TandemError as error:
            return None, error
        return self._mask, None

    def _choose(self, sequence: Sequence, logits: FloatArray, argmax: int, mask: TokenMask | None) -> int | TandemError:
        scratch = self._scratch_for(logits)
        processors, params = sequence.processors, sequence.params
        banned = processors.banned_ids(sequence.output_ids)
        changes = processors.changes_logits(banned)
        if mask is not None and not changes and sequence.is_greedy and mask.allows(argmax):
            return argmax  # the highest of all is the highest of those allowed
        if changes or mask is not None:
            scratch.logits[:] = logits
            logits = scratch.logits
            processors.apply(logits, banned)
            if mask is not None:
                np.copyto(logits, -np.inf, where=mask.to_forbidden())
            argmax = int(logits.argmax())
            if not np.isfinite(logits[argmax]):
                return _unusable() if mask is None else _nothing_left()
        if sequence.is_greedy:
            return argmax
        drawn = scratch.drawer.draw(
            logits,
            argmax,
            sequence.random.uniform(sequence.num_output_tokens),
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
        )
        return _unusable() if drawn is None else drawn

    def _log_probs(
        self, sequences: Seq[Sequence], rows: Seq[int], token_ids: Seq[int | TandemError], output: DecoderOutput
    ) -> list[float]:
        if not any(sequence.params.return_log_probs for sequence in sequences):
            return [0.0] * len(rows)
        columns = [token if isinstance(token, int) else 0 for token in token_ids]
        values = output.logits[rows, columns] - output.log_sum_exp[list(rows)]
        log_probs: list[float] = np.clip(values, LOG_PROB_FLOOR, 0.0).tolist()
        return log_probs

    def _top(self, sequence: Sequence, row: int, output: DecoderOutput, mask: TokenMask | None) -> tuple[TokenLogProbs, ...]:
        count = sequence.params.top_logprobs
        if count == 0:
            return ()
        logits = output.logits[row]
        scratch = self._scratch_for(logits)
        if mask is not None:
            scratch.logits[:] = logits
            np.copyto(scratch.logits, -np.inf, where=mask.to_forbidden())
            logits = scratch.logits
        maximum = logits.max()
        if not np.isfinite(maximum):
            return (TokenLogProbs((), ()),)
        scratch.row.fill(logits, maximum)
        ids = scratch.row.top_ids(count)
        values = np.clip(logits[ids] - output.log_sum_exp[row], LOG_PROB_FLOOR, 0.0)
        return (TokenLogProbs(tuple(ids.tolist()), tuple(values.tolist())),)

    def _scratch_for(self, logits: FloatArray) -> _Scratch:
        if self._scratch is None or self._scratch.logits.dtype != logits.dtype:
            self._scratch = _Scratch(self._vocab_size, logits.dtype)
        return self._scratch


def _unusable() -> TandemError:
    return EngineFailure("the model gave no usable probabilities for the next token; this request ends, others go on")


def _nothing_left() -> TandemError:
    remedy = "together with bad_words or min_tokens it leaves no token to go on with; loosen one of them"
    return InvalidRequest("guided_decoding_guide", "a guide", remedy)


class _Scratch:
    """Memory for one row at a time, in the precision of the decoder's logits."""

    def __init__(self, vocab_size: int, dtype: np.dtype[np.floating[Any]]) -> None:
        self.logits: FloatArray = np.zeros(vocab_size, dtype)  # the row as processors and mask change it
        self.row = BlockedRow(vocab_size, dtype)
        self.drawer = TokenDrawer(self.row)
