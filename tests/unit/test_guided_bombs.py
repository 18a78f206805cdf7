"""RELIABILITY S1: guides made to cost time or memory are refused, or compiled within the budget."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from loadtest.bench.guided_bombs import MAX_COMPILE_MB, MAX_COMPILE_MS, bombs
from tandem.errors import InvalidRequest
from tandem.guided.capabilities import CAPABILITIES
from tandem.guided.check import check_guide
from tandem.guided.limits import GuideLimits
from tandem.types import Guide
from tests.guided_factories import make_compiler, schema_guide

BOMBS = bombs()
# Under load one thread's own time still varies by half; a bomb that went off would take thousands of milliseconds.
SLACK = 3.0


def rss_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def test_bombs_when_counted_then_forty() -> None:
    assert len(BOMBS) == 40


@pytest.mark.parametrize("guide", BOMBS.values(), ids=BOMBS)
def test_bomb_when_checked_then_refused_or_within_the_budget(guide: Guide) -> None:
    started, rss_before = time.thread_time(), rss_mb()
    refusal = None
    try:
        check_guide(guide.type.value, guide.text, CAPABILITIES["cpu"], GuideLimits())
        make_compiler().compile(guide)
    except InvalidRequest as error:
        refusal = error
    assert refusal is None or (refusal.field == "guided_decoding_guide" and len(refusal.message) < 400)
    assert (time.thread_time() - started) * 1e3 < MAX_COMPILE_MS * SLACK
    assert rss_mb() - rss_before < MAX_COMPILE_MB


def test_cache_when_flooded_with_schemas_then_stays_within_64_mb() -> None:
    """A hundred of the ten thousand; every further one takes the place of an older one."""
    compiler = make_compiler(max_cache_bytes=4 * 2**20)
    rss_before = rss_mb()
    for number in range(100):
        compiler.compile(schema_guide({"type": "object", "properties": {f"p{number}": {"type": "string"}}}))
    assert compiler.num_cached_bytes <= 4 * 2**20
    assert rss_mb() - rss_before < MAX_COMPILE_MB
