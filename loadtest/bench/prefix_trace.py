"""The Mooncake conversation trace over the real block pool: how much of the prompts is found in the cache.

The trace names the content of each 512-token block of a prompt by an id; ids repeat where prompts begin alike. Lengths are scaled
by block size / 512, so that one block of the trace is one block of the pool and its longest prompts fit into the context. Requests
come one after the other in the order of the trace, each with its completion, which nobody asks for again.
"""

from __future__ import annotations

import gzip
import heapq
import json
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tandem.engine.kv_cache import BlockTable, KvCache
from tandem.models.decoder import LongArray

TRACE = Path(__file__).resolve().parents[3] / "shared" / "data" / "mooncake" / "conversation_trace.jsonl.gz"
_TRACE_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """``block_ids`` name the whole blocks of the prompt; lengths are in tokens, scaled."""

    block_ids: tuple[int, ...]
    num_prompt_tokens: int
    num_output_tokens: int


def read_trace(path: Path, block_size: int, max_seq_len: int, max_requests: int | None) -> list[TraceRequest]:
    """Scaled requests; one that is too long for the context is cut to it."""
    requests: list[TraceRequest] = []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            if len(requests) == max_requests:
                break
            raw = json.loads(line)
            num_output_tokens = min(max(raw["output_length"] * block_size // _TRACE_BLOCK_TOKENS, 1), max_seq_len // 2)
            num_prompt_tokens = max(raw["input_length"] * block_size // _TRACE_BLOCK_TOKENS, 1)
            num_prompt_tokens = min(num_prompt_tokens, max_seq_len - num_output_tokens)
            ids = tuple(raw["hash_ids"][: num_prompt_tokens // block_size])
            requests.append(TraceRequest(ids, num_prompt_tokens, num_output_tokens))
    return requests


def pool_hit_rate(requests: list[TraceRequest], num_blocks: int, block_size: int) -> float:
    """Share of the whole prompt blocks that the engine's own pool gives back."""
    kv = KvCache(num_blocks, block_size)
    num_hits = num_asked = 0
    for number, request in enumerate(requests):
        token_ids = _token_ids(request, number, block_size)
        table = BlockTable(-(-len(token_ids) // block_size), num_prompt_tokens=request.num_prompt_tokens)
        cached = kv.find_cached(table, token_ids, request.num_prompt_tokens)
        kv.adopt(table, cached)
        has_room = kv.reserve(table, len(cached) * block_size, len(token_ids))
        assert has_room, "the pool is smaller than one request"
        kv.publish(table, token_ids, len(token_ids) - 1)  # the last token of a completion is never computed
        kv.release(table)
        num_hits += len(cached)
        num_asked += len(request.block_ids)
    return num_hits / num_asked


def lru_hit_rate(requests: list[TraceRequest], num_blocks: int | None) -> float:
    """What an ideal least-recently-used cache of whole prompt blocks gives: nothing else takes room in it. None: no bound."""
    cache: OrderedDict[int, None] = OrderedDict()
    num_hits = num_asked = 0
    for request in requests:
        num_hits += _num_leading(request.block_ids, cache)
        num_asked += len(request.block_ids)
        for block in reversed(request.block_ids):  # the start of a prompt stays for longest
            cache[block] = None
            cache.move_to_end(block)
        while num_blocks is not None and len(cache) > num_blocks:
            cache.popitem(last=False)
    return num_hits / num_asked


def clairvoyant_hit_rate(requests: list[TraceRequest], num_blocks: int) -> float:
    """What no cache of this size can beat: it knows the future and gives up the block that is asked for last (Belady 1966)."""
    next_uses = _next_uses(requests)
    never = len(requests)
    cache: dict[int, int] = {}  # block -> next request that asks for it
    farthest: list[tuple[int, int]] = []  # heap of (-next use, block); stale entries are passed over
    num_hits = num_asked = 0
    for request, following in zip(requests, next_uses, strict=True):
        num_hits += _num_leading(request.block_ids, cache)
        num_asked += len(request.block_ids)
        for block, next_use in zip(request.block_ids, following, strict=True):
            cache.pop(block, None)
            if next_use < never:
                cache[block] = next_use
                heapq.heappush(farthest, (-next_use, block))
        while len(cache) > num_blocks:
            negated, block = heapq.heappop(farthest)
            if cache.get(block) == -negated:
                del cache[block]
    return num_hits / num_asked


def _next_uses(requests: list[TraceRequest]) -> list[tuple[int, ...]]:
    seen: dict[int, int] = {}
    found: list[tuple[int, ...]] = []
    for number in range(len(requests) - 1, -1, -1):
        ids = requests[number].block_ids
        found.append(tuple(seen.get(block, len(requests)) for block in ids))
        seen.update(dict.fromkeys(ids, number))
    return found[::-1]


def _num_leading(block_ids: tuple[int, ...], cache: dict[int, int] | OrderedDict[int, None]) -> int:
    for position, block in enumerate(block_ids):
        if block not in cache:
            return position
    return len(block_ids)


def _token_ids(request: TraceRequest, number: int, block_size: int) -> LongArray:
    """Tokens that repeat exactly where block ids do; all others occur once in the whole trace."""
    num_tokens = request.num_prompt_tokens + request.num_output_tokens
    token_ids = -(np.arange(num_tokens, dtype=np.int64) + 1) - number * (1 << 32)
    for position, block in enumerate(request.block_ids):
        token_ids[position * block_size : (position + 1) * block_size] = block
    return token_ids


def hit_rates(requests: list[TraceRequest], sizes: tuple[int, ...], block_size: int) -> Iterator[tuple[int, dict[str, float]]]:
    """Per pool size: the pool's hit rate, that of an ideal LRU cache of the size, and the most that any cache could give."""
    for num_blocks in sizes:
        yield (
            num_blocks,
            {
                "pool": pool_hit_rate(requests, num_blocks, block_size),
                "ideal_lru": lru_hit_rate(requests, num_blocks),
                "clairvoyant": clairvoyant_hit_rate(requests, num_blocks),
            },
        )
