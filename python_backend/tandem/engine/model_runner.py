"""Turn a scheduled batch into the decoder's flat arrays and run the forward pass."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from tandem.engine.scheduler import ScheduledBatch
from tandem.models.decoder import Decoder, DecoderBatch, DecoderOutput


class ModelRunner:
    """Owns the input arrays, made once for the largest batch. ``kernel_time_s`` adds up the time spent in the decoder."""

    def __init__(self, decoder: Decoder, *, max_num_seqs: int, max_num_batched_tokens: int, max_blocks_per_seq: int) -> None:
        self._decoder = decoder
        self._block_size = decoder.info.block_size
        self._input_ids = np.zeros(max_num_batched_tokens, np.int64)
        self._position_ids = np.zeros(max_num_batched_tokens, np.int64)
        self._past_lens = np.zeros(max_num_seqs, np.int32)
        self._subsequence_begins = np.zeros(max_num_seqs + 1, np.int32)
        self._block_indices = np.zeros(max_num_seqs * max_blocks_per_seq, np.int32)
        self._block_indices_begins = np.zeros(max_num_seqs + 1, np.int32)
        self._positions = np.arange(decoder.info.max_seq_len, dtype=np.int64)
        self.kernel_time_s = 0.0

    def run(self, batch: ScheduledBatch) -> tuple[DecoderOutput, list[int]]:
        """Copy blocks, run the batch; returns the output and which sequences caught up.

        The second value lists positions in ``batch.sequences``; entry i belongs to row i of the output. The decoder is always
        asked for at least one row, if need be that of the last token, because kernels need not support empty results.
        Raises: whatever the decoder raises.
        """
        inputs, sampled = self._fill(batch)
        started = perf_counter()
        try:
            if batch.copies:
                self._decoder.copy_blocks(batch.copies)
            return self._decoder.forward(inputs), sampled
        finally:
            self.kernel_time_s += perf_counter() - started

    def _fill(self, batch: ScheduledBatch) -> tuple[DecoderBatch, list[int]]:
        num_seqs = len(batch.sequences)
        token_at = block_at = max_context_len = 0
        sampled: list[int] = []
        sample_idx: list[int] = []
        token_begins, block_begins, past_lens = [0], [0], []
        for i, (sequence, num_tokens) in enumerate(zip(batch.sequences, batch.num_tokens, strict=True)):
            past = sequence.num_computed_tokens
            context_len = past + num_tokens
            token_end = token_at + num_tokens
            self._input_ids[token_at:token_end] = sequence.token_ids[past:context_len]
            self._position_ids[token_at:token_end] = self._positions[past:context_len]
            # A table may already hold blocks for later chunks of the prompt; the decoder sees those of this context only.
            block_end = block_at - (-context_len // self._block_size)
            self._block_indices[block_at:block_end] = sequence.table.ids[: block_end - block_at]
            token_at, block_at = token_end, block_end
            past_lens.append(past)
            token_begins.append(token_at)
            block_begins.append(block_at)
            if context_len > max_context_len:
                max_context_len = context_len
            if context_len == sequence.num_tokens:
                sampled.append(i)
                sample_idx.append(token_end - 1)
        self._past_lens[:num_seqs] = past_lens
        self._subsequence_begins[: num_seqs + 1] = token_begins
        self._block_indices_begins[: num_seqs + 1] = block_begins
        inputs = DecoderBatch(
            input_ids=self._input_ids[:token_at],
            position_ids=self._position_ids[:token_at],
            past_lens=self._past_lens[:num_seqs],
            subsequence_begins=self._subsequence_begins[: num_seqs + 1],
            block_indices=self._block_indices[:block_at],
            block_indices_begins=self._block_indices_begins[: num_seqs + 1],
            max_context_len=max_context_len,
            sample_idx=np.array(sample_idx or [token_at - 1], np.int64),
        )
        return inputs, sampled
