"""Schemas and instances of a public suite: what compiles, what is let through, and what our layer adds to llguidance's own time.

Reads ``part_a.tar.gz`` of a maskbench folder (one JSON file per schema: ``schema`` and ``tests`` of ``data`` and ``valid``). Times
are taken side by side: for every mask and every compile, ours and llguidance's own in turn, the first of the pair alternating.
"""

from __future__ import annotations

import json
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from loadtest.bench import Progress
from tandem.errors import InvalidRequest, TandemError
from tandem.guided.capabilities import CAPABILITIES
from tandem.guided.check import check_guide
from tandem.guided.compiler import GrammarCompiler
from tandem.guided.grammar import parser_limits
from tandem.guided.json_schema import INLINE_OPTIONS
from tandem.guided.limits import GuideLimits
from tandem.guided.matcher import GuideMatcher, TokenMask
from tandem.types import Guide, GuideType

_TIME_OUT_S = 5.0
_MAX_TIMED_TOKENS = 400  # per instance
_CALLS = ("Glaiveai2K", "MCPspec")  # the suite's schemas of function calls
_END_ID = 2
_NUM_COMPILES = 3


@dataclass
class SuiteFigures:
    """Counts are exact. Times in microseconds (masks) and milliseconds (compiles)."""

    mask_us: list[float] = field(default_factory=list)
    own_mask_us: list[float] = field(default_factory=list)
    compile_ms: list[float] = field(default_factory=list)
    own_compile_ms: list[float] = field(default_factory=list)
    num_schemas: int = 0
    num_supported: int = 0
    num_own_supported: int = 0
    num_refused: int = 0
    num_crashes: int = 0
    num_time_outs: int = 0
    accepted_invalid: int = 0
    num_invalid: int = 0
    rejected_valid: int = 0
    num_valid: int = 0
    num_tokens: int = 0
    num_forced: int = 0
    num_call_tokens: int = 0
    num_call_forced: int = 0
    wrong: list[str] = field(default_factory=list)


def read_suite(data: Path) -> Iterator[tuple[str, Any, list[dict[str, Any]]]]:
    """(name, schema, tests) of each file, by name."""
    with tarfile.open(data / "part_a.tar.gz") as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            file = archive.extractfile(member) if member.isfile() and member.name.endswith(".json") else None
            if file is not None:
                content = json.loads(file.read())
                yield Path(member.name).name, content["schema"], content["tests"]


def run_suite(data: Path, tokenizer: LLTokenizer, *, step: int, progress: Progress) -> SuiteFigures:
    """Every ``step``-th schema of the suite."""
    figures = SuiteFigures()
    for number, (name, schema, tests) in enumerate(read_suite(data)):
        if number % step:
            continue
        figures.num_schemas += 1
        if figures.num_schemas % 50 == 0:
            progress(f"suite: {figures.num_schemas} schemas, {figures.num_supported} supported, {len(figures.mask_us)} masks")
        try:
            _run_schema(name, schema, tests, tokenizer, figures)
        except Exception as error:
            figures.num_crashes += 1
            figures.wrong.append(f"{name}: {type(error).__name__}: {error}"[:200])
    return figures


def _run_schema(name: str, schema: Any, tests: list[dict[str, Any]], tokenizer: LLTokenizer, figures: SuiteFigures) -> None:
    guide = Guide(GuideType.JSON_SCHEMA, json.dumps(schema))
    started = time.perf_counter()
    ours, own = _compile_both(guide, tokenizer)
    figures.num_time_outs += time.perf_counter() - started > _TIME_OUT_S
    figures.num_own_supported += own is not None
    if ours is None:
        figures.num_refused += 1
        return
    figures.num_supported += 1
    if own is None:
        figures.wrong.append(f"{name}: ours compiles, llguidance's own does not")
        return
    figures.compile_ms.append(ours[1])
    figures.own_compile_ms.append(own[1])
    is_call = name.startswith(_CALLS)
    for test in tests:
        _run_instance(name, test, _Pair(ours[0].copy(), own[0].deep_copy()), tokenizer, figures, is_call=is_call)


def _compile_both(guide: Guide, tokenizer: LLTokenizer) -> tuple[tuple[GuideMatcher, float] | None, tuple[LLMatcher, float] | None]:
    """Each the best of several times, in turns: what comes first or after other work finds cold caches."""
    try:
        check_guide(guide.type.value, guide.text, CAPABILITIES["cpu"], GuideLimits())
    except InvalidRequest:
        return None, _compile_own(guide.text, tokenizer)
    ours, own = _compile_ours(guide, tokenizer), _compile_own(guide.text, tokenizer)
    if own is None:
        return ours, None
    ours_ms, own_ms = ours[1], own[1]
    for _ in range(_NUM_COMPILES):
        own_again, ours_again = _compile_own(guide.text, tokenizer), _compile_ours(guide, tokenizer)
        assert own_again is not None
        ours_ms, own_ms = min(ours_ms, ours_again[1]), min(own_ms, own_again[1])
    return (ours[0], ours_ms), (own[0], own_ms)


def _compile_ours(guide: Guide, tokenizer: LLTokenizer) -> tuple[GuideMatcher, float]:
    """The engine's compiler with its own checks and bookkeeping, and a matcher."""
    compiler = GrammarCompiler(tokenizer)
    started = time.perf_counter()
    matcher = compiler.compile(guide).matcher()
    elapsed_ms = (time.perf_counter() - started) * 1e3
    compiler.close()
    return matcher, elapsed_ms


def _compile_own(text: str, tokenizer: LLTokenizer) -> tuple[LLMatcher, float] | None:
    """llguidance by itself: the grammar, the matcher and its first mask, as in ours. None where it refuses."""
    mask = TokenMask(tokenizer.vocab_size)
    started = time.perf_counter()
    try:
        grammar = LLMatcher.grammar_from_json_schema(text, overrides=INLINE_OPTIONS)
    except ValueError:
        return None
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
    mask.fill(matcher)
    elapsed_ms = (time.perf_counter() - started) * 1e3
    return None if matcher.is_error() else (matcher, elapsed_ms)


@dataclass(frozen=True)
class _Pair:
    """One instance's place in our matcher and in llguidance's."""

    ours: GuideMatcher
    own: LLMatcher


def _run_instance(
    name: str, test: dict[str, Any], pair: _Pair, tokenizer: LLTokenizer, figures: SuiteFigures, *, is_call: bool
) -> None:
    tokens = tokenizer.tokenize_str(json.dumps(test["data"], ensure_ascii=False))
    is_accepted = _follow(tokens, pair, tokenizer.vocab_size, figures, is_call=is_call and test["valid"])
    if test["valid"]:
        figures.num_valid += 1
        figures.rejected_valid += not is_accepted
    else:
        figures.num_invalid += 1
        if is_accepted:
            figures.accepted_invalid += 1
            figures.wrong.append(f"{name}: an invalid instance was accepted ({test.get('description', '')})"[:200])


def _follow(tokens: list[int], pair: _Pair, vocab_size: int, figures: SuiteFigures, *, is_call: bool) -> bool:
    """Walk an instance through both matchers; True when ours accepts it as a whole."""
    mask, own_mask = TokenMask(vocab_size), TokenMask(vocab_size)
    matcher = pair.ours
    forced: list[int] = []
    for position, token in enumerate(tokens):
        forced = forced or matcher.forced_tokens()
        is_forced = bool(forced) and forced[0] == token
        forced = forced[1:] if is_forced else []
        if position < _MAX_TIMED_TOKENS:
            try:
                _time_masks(pair, mask, own_mask, figures)
            except TandemError:
                return False
            if not mask.allows(token):
                return False
        if matcher.count_accepted([token]) != 1:
            return False
        figures.num_tokens += 1
        figures.num_forced += is_forced
        figures.num_call_tokens += is_call
        figures.num_call_forced += is_call and is_forced
        matcher.consume(token)
        pair.own.consume_token(token)
    return matcher.is_accepting


def _time_masks(pair: _Pair, mask: TokenMask, own_mask: TokenMask, figures: SuiteFigures) -> None:
    """One mask of each on fresh copies, since a matcher remembers the mask of its state."""
    clock = time.perf_counter
    ours, own = pair.ours.copy(), pair.own.deep_copy()
    if len(figures.mask_us) % 2:
        started = clock()
        ours.fill(mask, _END_ID)
        middle = clock()
        own_mask.fill(own)
        ours_s, own_s = middle - started, clock() - middle
    else:
        started = clock()
        own_mask.fill(own)
        middle = clock()
        ours.fill(mask, _END_ID)
        own_s, ours_s = middle - started, clock() - middle
    figures.mask_us.append(ours_s * 1e6)
    figures.own_mask_us.append(own_s * 1e6)


def quantiles(values: list[float]) -> dict[str, float | None]:
    if not values:
        return {"p50": None, "p99": None, "max": None}
    p50, p99 = np.quantile(values, (0.5, 0.99))
    return {"p50": round(float(p50), 3), "p99": round(float(p99), 3), "max": round(max(values), 3)}
