"""The work that engine benchmarks give to every candidate: the same prompts, the same number of tokens, greedy, no end token."""

from __future__ import annotations

NUM_OUTPUT_TOKENS = 128
NUM_PROMPT_TOKENS = 64
NUM_PREFILL_TOKENS = 1024

_FIRST_ORDINARY_ID = 1000
_NUM_ORDINARY_IDS = 20000


def prompts(num_prompts: int, num_tokens: int = NUM_PROMPT_TOKENS) -> list[tuple[int, ...]]:
    """Prompts that differ from the first token on, so that no cache can share them."""
    return [
        tuple(_FIRST_ORDINARY_ID + (number * 7919 + position * 104729) % _NUM_ORDINARY_IDS for position in range(num_tokens))
        for number in range(num_prompts)
    ]
