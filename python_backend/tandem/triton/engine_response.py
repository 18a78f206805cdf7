"""What an engine answers to the output tensors of the contract. Knows numpy and the protocol, not Triton.

Streaming: one response per sequence with its new tokens; deltas that wait together become one response, but an empty delta (an end
token) stays one of its own, since a caller tells the end of a sequence by it. Not streaming: one response per sequence, at its end.
``output_log_probs`` and ``cum_log_probs`` are cumulative in both modes, as in TensorRT-LLM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tandem.errors import InvalidRequest
from tandem.triton.engine_request import EngineCall
from tandem.triton.tensors import Array, int32
from tandem.types import SequenceDelta, TokenLogProbs

REQUIRED_OUTPUTS = frozenset(("output_ids", "sequence_length"))


def check_outputs(requested: frozenset[str]) -> None:
    """Raises: InvalidRequest when the answer could not be understood without what was left out."""
    missing = sorted(REQUIRED_OUTPUTS - requested)
    if missing:
        raise InvalidRequest("outputs", sorted(requested), f"request {' and '.join(missing)} too, or name no outputs to get all")


@dataclass(slots=True)
class _SequenceState:
    """One sequence so far: ``log_probs`` of all its tokens, ``unsent`` the deltas no response has carried yet."""

    log_probs: list[float] = field(default_factory=list)
    cum_log_prob: float = 0.0
    num_tokens: int = 0
    unsent: list[SequenceDelta] = field(default_factory=list)
    is_sent: bool = False  # not streaming: its one response is out


@dataclass(frozen=True, slots=True)
class RowContext:
    """Where a row stands in its request and in its engine."""

    batch_index: int | None  # None: the request has one row, and the tensor is left out
    requested_outputs: frozenset[str]
    exclude_input_default: bool
    block_size: int


class RowEncoder:
    """Turns the deltas of one row into responses (output name -> array), in order. Owned by one thread."""

    def __init__(self, call: EngineCall, context: RowContext, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._call = call
        self._context = context
        self._clock_ns = clock_ns
        self._sequences = [_SequenceState() for _ in range(call.sampling.num_return_sequences)]
        self._num_cached_tokens = 0
        self._arrival_ns = clock_ns()
        self._first_token_ns = 0
        self._last_token_ns = 0

    def take(self, deltas: Sequence[SequenceDelta]) -> list[dict[str, Array]]:
        """The responses that these deltas complete. The one after which nothing follows is the last of the list."""
        for delta in deltas:
            self._note(delta)
        return self._streamed(deltas) if self._call.options.streaming else self._whole(deltas)

    def _note(self, delta: SequenceDelta) -> None:
        state = self._sequences[delta.sequence_index]
        state.unsent.append(delta)
        state.num_tokens += len(delta.token_ids)
        state.log_probs.extend(delta.log_probs)
        state.cum_log_prob = delta.cum_log_prob if delta.token_ids else state.cum_log_prob
        self._num_cached_tokens = max(self._num_cached_tokens, delta.num_cached_tokens)
        if delta.token_ids:
            self._last_token_ns = self._clock_ns()
            self._first_token_ns = self._first_token_ns or self._last_token_ns

    def _streamed(self, deltas: Sequence[SequenceDelta]) -> list[dict[str, Array]]:
        """One response per sequence in the order of each one's latest delta, so that the last delta of all comes last."""
        responses = []
        for index in dict.fromkeys(delta.sequence_index for delta in reversed(deltas)):
            state = self._sequences[index]
            with_tokens = [delta for delta in state.unsent if delta.token_ids]
            without = [delta for delta in state.unsent if not delta.token_ids]
            parts = ([with_tokens] if with_tokens else []) + [[delta] for delta in without]
            state.unsent = []
            responses.append([self._response(index, part, ()) for part in parts])
        return [response for of_sequence in reversed(responses) for response in of_sequence]

    def _whole(self, deltas: Sequence[SequenceDelta]) -> list[dict[str, Array]]:
        ended = [delta.sequence_index for delta in deltas if delta.finish_reason is not None]
        if deltas and deltas[-1].is_last:  # a cancel ends all sequences with one delta; each still gets its response
            ended += [index for index in range(len(self._sequences)) if index not in ended]
        responses = []
        for index in dict.fromkeys(ended):
            state = self._sequences[index]
            if state.is_sent:
                continue
            state.is_sent = True
            responses.append(self._response(index, state.unsent, () if self._excludes_input else self._call.prompt_ids))
            state.unsent = []
        return responses

    @property
    def _excludes_input(self) -> bool:
        own = self._call.options.exclude_input
        return self._context.exclude_input_default if own is None else own

    def _response(self, index: int, deltas: Sequence[SequenceDelta], prefix: tuple[int, ...]) -> dict[str, Array]:
        ids = [*prefix, *(token for delta in deltas for token in delta.token_ids)]
        tensors = {
            "output_ids": np.array(ids, np.int32).reshape(1, 1, len(ids)),
            "sequence_length": int32(len(ids), 1, 1),
        }
        self._add_log_probs(tensors, index, deltas)
        if self._wants("output_entropy"):
            entropies = [entropy for delta in deltas for entropy in delta.entropies]
            tensors["output_entropy"] = np.array(entropies, np.float32).reshape(1, 1, len(entropies))
        self._add_counts(tensors, index)
        return tensors

    def _add_log_probs(self, tensors: dict[str, Array], index: int, deltas: Sequence[SequenceDelta]) -> None:
        state, sampling = self._sequences[index], self._call.sampling
        if sampling.return_log_probs:
            if self._wants("cum_log_probs"):
                tensors["cum_log_probs"] = np.full((1, 1), state.cum_log_prob, np.float32)
            if self._wants("output_log_probs"):
                tensors["output_log_probs"] = np.array(state.log_probs, np.float32).reshape(1, 1, len(state.log_probs))
        if sampling.top_logprobs and self._wants("output_top_ids"):
            rows = [top for delta in deltas for top in delta.top]
            tensors["output_top_ids"], tensors["output_top_log_probs"] = _top(rows, sampling.top_logprobs)

    def _add_counts(self, tensors: dict[str, Array], index: int) -> None:
        options, context = self._call.options, self._context
        if context.batch_index is not None:
            tensors["batch_index"] = int32(context.batch_index, 1, 1)
        if len(self._sequences) > 1:
            tensors["sequence_index"] = int32(index, 1, 1)
        if options.return_num_input_tokens:
            tensors["num_input_tokens"] = int32(len(self._call.prompt_ids), 1, 1)
        if options.return_num_output_tokens:
            tensors["num_output_tokens"] = int32(self._sequences[index].num_tokens, 1, 1)
        if options.return_perf_metrics:
            tensors.update(self._perf_metrics(index))

    def _perf_metrics(self, index: int) -> dict[str, Array]:
        """All of the contract but ``first_scheduled_time_ns``, which the engine does not report. Times: monotonic clock, ns."""
        # The last token of a sequence is never computed, so it takes no slot.
        num_slots = len(self._call.prompt_ids) + max(self._sequences[index].num_tokens - 1, 0)
        num_blocks = -(-num_slots // self._context.block_size)
        num_reused = self._num_cached_tokens // self._context.block_size
        values: dict[str, tuple[float, type[np.generic]]] = {
            "kv_cache_alloc_total_blocks": (num_blocks, np.int32),
            "kv_cache_alloc_new_blocks": (num_blocks - num_reused, np.int32),
            "kv_cache_reused_blocks": (num_reused, np.int32),
            "arrival_time_ns": (self._arrival_ns, np.int64),
            "first_token_time_ns": (self._first_token_ns, np.int64),
            "last_token_time_ns": (self._last_token_ns, np.int64),
            "acceptance_rate": (0.0, np.float32),
            "total_accepted_draft_tokens": (0, np.int32),
            "total_draft_tokens": (0, np.int32),
        }
        # The router asks for one of them with every token, so only what is wanted is made.
        return {name: np.full((1, 1), value, dtype) for name, (value, dtype) in values.items() if self._wants(name)}

    def _wants(self, name: str) -> bool:
        return name in self._context.requested_outputs


def _top(rows: Sequence[TokenLogProbs], width: int) -> tuple[Array, Array]:
    """[1, n, width] each; ids -1 and log-probabilities -inf where a row has fewer alternatives."""
    ids = np.full((1, len(rows), width), -1, np.int32)
    log_probs = np.full((1, len(rows), width), -np.inf, np.float32)
    for position, row in enumerate(rows):
        ids[0, position, : len(row.ids)] = row.ids
        log_probs[0, position, : len(row.log_probs)] = row.log_probs
    return ids, log_probs
