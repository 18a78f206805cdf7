"""What changes the logits of one sequence before a token is chosen, in this order:

1. logit bias: added to the logits;
2. repetition penalty, over the tokens of prompt and completion: positive logits are divided by it, others multiplied
   (Keskar et al., "CTRL", 2019);
3. frequency penalty times the number of times, presence penalty once, over the tokens of the completion: subtracted;
4. bans: minus infinity for a token that would complete a bad word, and, while the completion would be shorter than ``min_tokens``,
   for the end token and for a token that would complete a stop word. Last, so that nothing lifts a ban.

Log-probabilities and entropy are those of the distribution before all of this.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tandem.engine.words import WordList
from tandem.models.decoder import FloatArray, LongArray
from tandem.types import SamplingParams

MAX_ABS_LOGIT = 1e30
"""Processed logits stay within this, so that float32 cannot overflow when they are divided by a small temperature."""


class Penalties:
    """The distinct tokens of one sequence and how often the completion holds each. Grows by one token per step."""

    __slots__ = ("_counts", "_frequency", "_ids", "_num_ids", "_presence", "_repetition", "_slots")

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int], max_tokens: int) -> None:
        # Beyond these bounds the result is cut off at MAX_ABS_LOGIT anyway, but the arithmetic could overflow.
        self._repetition = min(max(params.repetition_penalty, 1.0 / MAX_ABS_LOGIT), MAX_ABS_LOGIT)
        self._presence = params.presence_penalty
        self._frequency = params.frequency_penalty
        distinct = list(dict.fromkeys(prompt_ids))
        self._slots = {token: slot for slot, token in enumerate(distinct)}
        self._ids: LongArray = np.zeros(len(distinct) + max_tokens, np.int64)
        self._ids[: len(distinct)] = distinct
        self._counts = np.zeros(len(self._ids), np.float64)
        self._num_ids = len(distinct)

    @staticmethod
    def are_used_by(params: SamplingParams) -> bool:
        return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0

    def add(self, token: int) -> None:
        slot = self._slots.get(token)
        if slot is None:
            slot = self._slots[token] = self._num_ids
            self._ids[slot] = token
            self._num_ids += 1
        self._counts[slot] += 1.0

    def apply(self, logits: FloatArray) -> None:
        ids, counts = self._ids[: self._num_ids], self._counts[: self._num_ids]
        values = logits[ids].astype(np.float64)
        if self._repetition != 1.0:
            values = np.where(values > 0.0, values / self._repetition, values * self._repetition)
        values -= self._frequency * counts
        values -= self._presence * (counts > 0.0)
        logits[ids] = np.clip(values, -MAX_ABS_LOGIT, MAX_ABS_LOGIT)


class LogitBias:
    """The sparse additive bias of one request; shared by its sequences."""

    __slots__ = ("_ids", "_values")

    def __init__(self, bias: Sequence[tuple[int, float]]) -> None:
        # A dict: an id that is named twice takes its last value.
        merged = dict(bias)
        self._ids = np.array(list(merged), np.int64)
        self._values = np.array(list(merged.values()), np.float64)

    def apply(self, logits: FloatArray) -> None:
        logits[self._ids] += self._values.astype(logits.dtype)


class Processors:
    """The processors of one sequence, with what they remember of it."""

    __slots__ = ("_bad_words", "_bias", "_end_id", "_has_bans", "_min_tokens", "_penalties", "_stop_words", "is_none")

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int], max_tokens: int) -> None:
        self._bias = LogitBias(params.logit_bias) if params.logit_bias else None
        self._penalties = Penalties(params, prompt_ids, max_tokens) if Penalties.are_used_by(params) else None
        self._bad_words = WordList(params.bad_words)
        self._stop_words = WordList(params.stop_words)
        self._min_tokens = params.min_tokens
        self._end_id = params.end_id
        self._has_bans = bool(self._bad_words) or params.min_tokens > 0
        self.is_none = self._bias is None and self._penalties is None and not self._has_bans

    def add(self, token: int) -> None:
        """Take note of a new token of the completion."""
        if self._penalties is not None:
            self._penalties.add(token)

    def banned_ids(self, output_ids: Sequence[int]) -> list[int]:
        """The ids that must not come next; may name an id twice."""
        if not self._has_bans:
            return []
        banned = self._bad_words.completing_ids(output_ids)
        # An end token is not part of the completion, a stop word is.
        if len(output_ids) < self._min_tokens and self._end_id is not None:
            banned.append(self._end_id)
        if len(output_ids) + 1 < self._min_tokens:
            banned += self._stop_words.completing_ids(output_ids)
        return banned

    def changes_logits(self, banned_ids: Sequence[int]) -> bool:
        """True unless the row can be used as the decoder made it."""
        return bool(banned_ids) or self._bias is not None or self._penalties is not None

    def apply(self, logits: FloatArray, banned_ids: Sequence[int]) -> None:
        """Change one row in place. ``logits`` [vocab_size]"""
        if self._bias is not None:
            self._bias.apply(logits)
        if self._penalties is not None:
            self._penalties.apply(logits)
        if banned_ids:
            logits[list(banned_ids)] = -np.inf
