"""Drives a ``Decoder`` by hand: keeps block tables of named sequences and packs one ragged batch per step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tandem.models.decoder import Decoder, DecoderBatch, DecoderOutput


class PagedDriver:
    """``step`` takes (sequence name, new tokens, how many of the last of them to sample)."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self._free = list(range(decoder.info.num_blocks))
        self._tables: dict[object, list[int]] = {}
        self._lengths: dict[object, int] = {}

    def step(self, items: Sequence[tuple[object, Sequence[int], int]]) -> DecoderOutput:
        ids, positions, past_lens, begins, blocks, block_begins, samples = [], [], [], [0], [], [0], []
        for name, tokens, num_samples in items:
            past = self._lengths.get(name, 0)
            length = past + len(tokens)
            table = self._tables.setdefault(name, [])
            while len(table) * self.decoder.info.block_size < length:
                table.append(self._free.pop())
            ids += tokens
            positions += range(past, length)
            past_lens.append(past)
            begins.append(len(ids))
            blocks += table
            block_begins.append(len(blocks))
            samples += range(len(ids) - num_samples, len(ids))
            self._lengths[name] = length
        return self.decoder.forward(
            DecoderBatch(
                input_ids=np.array(ids, dtype=np.int64),
                position_ids=np.array(positions, dtype=np.int64),
                past_lens=np.array(past_lens, dtype=np.int32),
                subsequence_begins=np.array(begins, dtype=np.int32),
                block_indices=np.array(blocks, dtype=np.int32),
                block_indices_begins=np.array(block_begins, dtype=np.int32),
                max_context_len=max(self._lengths[name] for name, _, _ in items),
                sample_idx=np.array(samples, dtype=np.int64),
            )
        )

    def fork(self, parent: object, child: object) -> None:
        """The child gets copies of the parent's blocks."""
        table = [self._free.pop() for _ in self._tables[parent]]
        self.decoder.copy_blocks(list(zip(self._tables[parent], table, strict=True)))
        self._tables[child], self._lengths[child] = table, self._lengths[parent]

    def end(self, name: object) -> None:
        self._free += self._tables.pop(name)
        del self._lengths[name]


def greedy_alone(decoder: Decoder, prompt: Sequence[int], num_tokens: int, *, chunk_tokens: int | None = None) -> list[int]:
    """One sequence by itself, its prompt fed in chunks."""
    driver = PagedDriver(decoder)
    chunk = chunk_tokens or len(prompt)
    for begin in range(0, len(prompt), chunk):
        output = driver.step([("a", prompt[begin : begin + chunk], 1)])
    token_ids = [int(output.argmax[0])]
    while len(token_ids) < num_tokens:
        token_ids.append(int(driver.step([("a", token_ids[-1:], 1)]).argmax[0]))
    return token_ids


def greedy_mixed(decoder: Decoder, prompts: Sequence[Sequence[int]], num_tokens: int, *, seed: int) -> list[list[int]]:
    """All prompts together: staggered starts, random chunk sizes, a new order in every step."""
    rng = np.random.default_rng(seed)
    driver = PagedDriver(decoder)
    starts = rng.integers(0, 12, len(prompts))
    fed = [0] * len(prompts)
    answers: list[list[int]] = [[] for _ in prompts]
    step = 0
    while any(len(answer) < num_tokens for answer in answers):
        items = []
        for i in rng.permutation(len(prompts)).tolist():
            if step < starts[i] or len(answers[i]) >= num_tokens:
                continue
            chunk = prompts[i][fed[i] : fed[i] + int(rng.integers(1, 40))]
            fed[i] += len(chunk)
            items.append((i, chunk or answers[i][-1:], 1))
        step += 1
        if not items:
            continue
        argmax = driver.step(items).argmax.tolist()
        for (i, _, _), token_id in zip(items, argmax, strict=True):
            if fed[i] == len(prompts[i]):
                answers[i].append(token_id)
    return answers
