"""The trace replay behind ``tandem bench prefix``, on traces small enough to count by hand."""

import gzip
import json

import pytest

from loadtest.bench import prefix
from loadtest.bench.prefix_trace import (
    TraceRequest,
    clairvoyant_hit_rate,
    lru_hit_rate,
    pool_hit_rate,
    read_trace,
)


def trace(*block_ids):
    """Requests of whole blocks of 32 tokens and one token more, each answered with one token."""
    return [TraceRequest(ids, len(ids) * 32 + 1, 1) for ids in block_ids]


REQUESTS = trace((1, 2, 3), (1, 2, 4), (5,), (1, 2, 3))


def test_hit_rate_when_everything_fits_then_repeated_prefixes_are_hits():
    assert lru_hit_rate(REQUESTS, None) == clairvoyant_hit_rate(REQUESTS, 10) == pool_hit_rate(REQUESTS, 20, 32) == 5 / 10


def test_hit_rate_when_cache_is_small_then_lru_keeps_the_recent_and_the_clairvoyant_what_comes_again():
    assert lru_hit_rate(REQUESTS, 2) == 3 / 10  # (1, 2) again; then 5 pushes out 2
    assert clairvoyant_hit_rate(REQUESTS, 2) == 4 / 10


def test_hit_rate_when_a_middle_block_is_gone_then_only_the_beginning_counts():
    assert lru_hit_rate(trace((1, 2), (3, 2), (1, 2)), 10) == 2 / 6


def test_trace_when_read_then_lengths_are_scaled_and_cut_to_the_context(tmp_path):
    path = tmp_path / "trace.jsonl.gz"
    rows = [
        {"timestamp": 0, "input_length": 1100, "output_length": 500, "hash_ids": [7, 8, 9]},
        {"timestamp": 1, "input_length": 512 * 9, "output_length": 3, "hash_ids": list(range(9))},
    ]
    with gzip.open(path, "wt") as file:
        file.write("\n".join(json.dumps(row) for row in rows))
    first, second = read_trace(path, 32, 128, None)
    assert first == TraceRequest((7, 8), 1100 * 32 // 512, 500 * 32 // 512)
    assert second == TraceRequest((0, 1, 2), 127, 1)
    assert read_trace(path, 32, 128, 1) == [first]


def test_bench_when_trace_is_absent_then_null_with_a_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(prefix, "TRACE", tmp_path / "nothing.gz")
    result = prefix._replay_trace(True, lambda line: None)
    assert result["hit_rate_vs_ideal"] is None
    assert "mooncake" in result["trace_missing"]


@pytest.mark.skipif(not prefix.TRACE.is_file(), reason="the Mooncake trace is not beside the checkout")
def test_pool_when_fed_the_trace_then_at_least_95_percent_of_an_ideal_lru():
    requests = read_trace(prefix.TRACE, 32, 8192, 1500)
    for num_blocks in (512, 2048):
        assert pool_hit_rate(requests, num_blocks, 32) >= 0.95 * lru_hit_rate(requests, num_blocks)
