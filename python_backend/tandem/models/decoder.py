"""The seam between an engine and a forward pass: a ragged batch of tokens in, logits of chosen rows out.

A decoder owns its weights and the KV memory of ``num_blocks`` blocks; it knows no request. Who may use which block is the
engine's business (``tandem.engine.block_pool``). The layout of the batch is that of OpenVINO's paged attention::

    two sequences: A prefills 3 tokens after 0, B decodes 1 token after 33 (block_size 32)
    input_ids            a0 a1 a2 b33          [num_tokens]
    position_ids          0  1  2  33          [num_tokens]
    past_lens             0        33          [num_seqs]      tokens already in the cache
    subsequence_begins    0         3   4      [num_seqs + 1]  where each sequence starts in input_ids
    block_indices         7      4  9          [num_blocks_used]  A owns block 7; B owns blocks 4 and 9
    block_indices_begins  0      1      3      [num_seqs + 1]
    sample_idx            2  3                 [num_samples]   rows of input_ids whose logits are wanted
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
LongArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class DecoderInfo:
    """What an engine must know of a decoder. ``max_seq_len`` counts prompt and completion together."""

    vocab_size: int
    block_size: int
    num_blocks: int
    max_seq_len: int
    kv_bytes_per_token: int


@dataclass(frozen=True, slots=True)
class DecoderBatch:
    """One forward pass; see the picture in the module docstring. Read by ``forward`` only during the call."""

    input_ids: LongArray
    position_ids: LongArray
    past_lens: IntArray
    subsequence_begins: IntArray
    block_indices: IntArray
    block_indices_begins: IntArray
    max_context_len: int
    sample_idx: LongArray


@dataclass(frozen=True, slots=True)
class DecoderOutput:
    """Rows of the distribution before any processor. All arrays are valid until the next ``forward`` and may be views."""

    logits: FloatArray  # [num_samples, vocab_size] float32 (a reference decoder may give float64)
    log_sum_exp: FloatArray  # [num_samples], so that log p = logits - log_sum_exp
    entropy: FloatArray  # [num_samples], nats
    argmax: npt.NDArray[np.integer[Any]]  # [num_samples]; the lowest id wins a tie


class Decoder(Protocol):
    """A forward pass over paged KV memory. Not thread-safe: one engine thread calls it."""

    @property
    def info(self) -> DecoderInfo: ...

    def forward(self, batch: DecoderBatch) -> DecoderOutput:
        """Write K and V of every input token into its block slot, return the sampled rows.

        Modifies: the KV memory of the named blocks, nothing else. Raises: EngineFailure when the kernel fails; the KV of the
        batch's new tokens is then undefined, that of every other token is intact.
        """
        ...

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole KV blocks (source, target) in the given order; for copy-on-write when sequences fork."""
        ...
