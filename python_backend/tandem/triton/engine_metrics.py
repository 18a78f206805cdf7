"""The metric families of TensorRT-LLM's backend, fed from the statistics of the CPU engine."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from tandem.engine import EngineStats

_log = logging.getLogger(__name__)

# family -> (help, label that tells its members apart)
_FAMILIES: dict[str, tuple[str, str]] = {
    "nv_trt_llm_request_metrics": ("Requests of the engine by state", "request_type"),
    "nv_trt_llm_kv_cache_block_metrics": ("Blocks of the paged KV cache", "kv_cache_block_type"),
    "nv_trt_llm_inflight_batcher_metrics": ("What the in-flight batcher runs", "inflight_batcher_specific_metric"),
    "nv_trt_llm_general_metrics": ("Time of the sample and steps so far", "general_type"),
    "tandem_engine_metrics": ("Prefix cache, preemptions, cancels and waiting times since the start", "engine_metric"),
}


def values_of(stats: EngineStats, previous: EngineStats, timestamp_s: float) -> dict[tuple[str, str], float]:
    """(family, member) -> value. ``active`` is running and waiting together, as in TensorRT-LLM; counts are of sequences.

    TensorRT-LLM states context tokens and paused requests of its last iteration; here they are those since the previous sample.
    """
    num_active = stats.num_running + stats.num_waiting
    requests, blocks = "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"
    batcher, general = "nv_trt_llm_inflight_batcher_metrics", "nv_trt_llm_general_metrics"
    own = "tandem_engine_metrics"
    return {
        (requests, "active"): num_active,
        (requests, "max"): stats.max_num_seqs,
        (requests, "scheduled"): stats.num_running,
        (requests, "waiting"): stats.num_waiting,
        (blocks, "max"): stats.num_blocks,
        (blocks, "free"): stats.num_free_blocks,
        (blocks, "used"): stats.num_used_blocks,
        (blocks, "tokens_per"): stats.block_size,
        (blocks, "reused"): stats.num_reused_blocks,
        (blocks, "fraction"): stats.kv_usage,
        (batcher, "total_context_tokens"): stats.num_context_tokens - previous.num_context_tokens,
        (batcher, "generation_requests"): stats.num_running,
        (batcher, "paused_requests"): stats.num_preemptions - previous.num_preemptions,
        (general, "timestamp"): timestamp_s,
        (general, "iteration_counter"): stats.num_steps,
        (own, "prompt_tokens"): stats.num_prompt_tokens,
        (own, "cached_tokens"): stats.num_cached_tokens,
        (own, "cached_blocks"): stats.num_cached_blocks,
        (own, "evictions"): stats.num_evictions,
        (own, "preemptions"): stats.num_preemptions,
        (own, "started_requests"): stats.num_started,
        (own, "queue_time_s"): stats.queue_time_s,
        (own, "cancelled_requests"): stats.num_cancelled,
        (own, "last_cancel_timestamp_s"): stats.last_cancel_time_s,
    }


class EngineMetrics:
    """Updates the gauges every ``period_s`` from a thread of its own, and only those that changed: each costs a call to the server.

    Owns families and metrics: Triton 2.51 drops a metric whose family is collected as garbage.
    """

    def __init__(self, labels: Mapping[str, str], stats: Callable[[], EngineStats], period_s: float) -> None:
        self._stats = stats
        self._period_s = period_s
        self._families: dict[str, Any] = {
            name: pb_utils.MetricFamily(name=name, description=text, kind=pb_utils.MetricFamily.GAUGE)
            for name, (text, _) in _FAMILIES.items()
        }
        self._gauges: dict[tuple[str, str], Any] = {}
        self._last: dict[tuple[str, str], float] = {}
        self._previous = stats()
        for family, member in values_of(self._previous, self._previous, 0.0):
            _, label = _FAMILIES[family]
            self._gauges[family, member] = self._families[family].Metric(labels={**labels, label: member})
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tandem-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop updating; the gauges end with this object."""
        self._closing.set()
        self._thread.join()
        self._gauges.clear()
        self._families.clear()

    def _run(self) -> None:
        while not self._closing.wait(self._period_s):
            self._update()

    def _update(self) -> None:
        stats = self._stats()
        values = values_of(stats, self._previous, float(int(time.time())))
        self._previous = stats
        try:
            for key, value in values.items():
                if self._last.get(key) != value:
                    self._gauges[key].set(value)
                    self._last[key] = value
        except pb_utils.TritonModelException:
            _log.exception("the metrics could not be updated; the next try follows")
