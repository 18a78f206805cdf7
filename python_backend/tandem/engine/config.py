"""The limits of one engine, checked when they are built."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.config import SCHEDULING_POLICIES, SchedulingPolicy
from tandem.errors import SetupError


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How much one engine takes on at a time. The number of KV blocks is the decoder's (``DecoderInfo.num_blocks``).

    ``max_num_batched_tokens`` is the token budget of one step: prompts longer than what is left of it are prefilled in chunks.
    It bounds the time of a step, and so the gap between two tokens of a neighbour and the time until a cancel takes effect.
    ``max_queue_size`` counts the requests that wait beyond the free sequence slots; one more is refused with Overloaded.
    ``max_seq_len`` counts prompt and completion together; None takes the decoder's.
    ``scheduling_policy`` orders the prompts that wait: ``fcfs`` by arrival, ``slo`` by predicted work and slack, where the slack is
    to ``slo_ttft_ms`` after the arrival (see tandem.scheduling). Neither changes a token.
    ``has_prefix_cache``: sequences begin with the KV blocks of an equal prefix that an earlier one computed. ``has_jump_forward``:
    tokens that a guide forces are appended without a step each; neither changes a token.
    """

    max_num_seqs: int = 16
    max_num_batched_tokens: int = 256
    max_queue_size: int = 128
    max_seq_len: int | None = None
    scheduling_policy: SchedulingPolicy = "fcfs"
    slo_ttft_ms: int = 2000
    has_prefix_cache: bool = True
    has_jump_forward: bool = True

    def __post_init__(self) -> None:
        _check_at_least("max_num_seqs", self.max_num_seqs, 1)
        _check_at_least("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        _check_at_least("max_queue_size", self.max_queue_size, 0)
        _check_at_least("slo_ttft_ms", self.slo_ttft_ms, 1)
        if self.scheduling_policy not in SCHEDULING_POLICIES:
            raise SetupError(f"scheduling_policy: got {self.scheduling_policy!r}; give one of {', '.join(SCHEDULING_POLICIES)}")
        if self.max_seq_len is not None:
            _check_at_least("max_seq_len", self.max_seq_len, 2)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise SetupError(
                f"max_num_batched_tokens: got {self.max_num_batched_tokens}; "
                f"each of the {self.max_num_seqs} sequences (max_num_seqs) needs at least one token per step"
            )


def _check_at_least(name: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise SetupError(f"{name}: got {value!r}; give a whole number of at least {low}")
