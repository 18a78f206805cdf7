"""What an engine counts, and the snapshot that others may read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot taken at a step boundary. ``num_running`` and ``num_waiting`` are now, the rest counts since the start.

    ``num_context_tokens`` are tokens computed because they were given or had to be computed again after a preemption;
    ``num_generated_tokens`` are sampled tokens without end tokens. ``num_cached_tokens`` are prompt tokens that were not computed
    because an earlier request had; beside ``num_prompt_tokens``, those of all admitted prompts, they give the hit rate.
    ``num_reused_blocks`` also counts what a preempted sequence found again. ``outside_time_s`` is all time of the engine loop that
    is spent neither in the decoder nor waiting for work.
    """

    num_running: int = 0  # sequences
    num_waiting: int = 0  # sequences, the preempted ones among them
    max_num_seqs: int = 0
    num_blocks: int = 0
    num_used_blocks: int = 0
    num_free_blocks: int = 0
    block_size: int = 0
    num_steps: int = 0
    num_context_tokens: int = 0
    num_generated_tokens: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_cached_blocks: int = 0  # now, in use or idle; idle ones count as free too
    num_reused_blocks: int = 0
    num_evictions: int = 0
    num_preemptions: int = 0
    num_accepted: int = 0  # requests, as are the next five
    num_started: int = 0  # admitted for the first time
    num_completed: int = 0
    num_cancelled: int = 0
    num_failed: int = 0
    num_refused: int = 0
    num_leaked_blocks: int = 0
    queue_time_s: float = 0.0  # from acceptance to the first admission, of all started requests together
    last_cancel_time_s: float = 0.0  # Unix time at which a cancelled request last left the engine, its blocks free; 0 before any
    kernel_time_s: float = 0.0
    outside_time_s: float = 0.0

    @property
    def overhead_ms_per_step(self) -> float:
        """Mean time outside the decoder per step; 0 before the first step."""
        return self.outside_time_s / self.num_steps * 1e3 if self.num_steps else 0.0

    @property
    def cache_hit_rate(self) -> float:
        """Share of the prompt tokens that were not computed, 0 to 1."""
        return self.num_cached_tokens / self.num_prompt_tokens if self.num_prompt_tokens else 0.0

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use, 0 to 1."""
        return self.num_used_blocks / self.num_blocks if self.num_blocks else 0.0


@dataclass(slots=True)
class EngineCounters:
    """The counters behind :class:`EngineStats`; written by the engine thread only."""

    num_steps: int = 0
    num_context_tokens: int = 0
    num_generated_tokens: int = 0
    num_accepted: int = 0
    num_started: int = 0
    num_completed: int = 0
    num_cancelled: int = 0
    num_failed: int = 0
    num_leaked_blocks: int = 0
    queue_time_s: float = 0.0
    kernel_time_s: float = 0.0
    outside_time_s: float = 0.0
