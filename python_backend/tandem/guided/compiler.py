"""Guides to grammars, each compiled once: a cache bounded in memory, and workers beside the engine thread.

::

    compile(guide) ── cached? ──► Grammar ──► one GuideMatcher per sequence (a copy: microseconds)
         └─ no: check, translate, compile (llguidance, without the GIL)
    submit(guide, then) ── the same in a worker; equal guides that arrive meanwhile wait for the one compile

A failed guide is remembered too, but only for those who wait for it. Nothing is written to a disk.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future

from llguidance import LLMatcher, LLTokenizer

from tandem.errors import EngineFailure, TandemError
from tandem.guided.background import background_pool
from tandem.guided.grammar import grammar_of, parser_limits
from tandem.guided.limits import GuideLimits
from tandem.guided.matcher import GuideMatcher, TokenMask
from tandem.types import Guide

MAX_CACHE_BYTES = 64 * 1024 * 1024
# Measured: a compiled grammar holds about 100 kB and grows with its text and with the lexer states its matchers find.
_GRAMMAR_BYTES = 160 * 1024
_BYTES_PER_GUIDE_BYTE = 64

Then = Callable[["Grammar | TandemError"], None]


class Grammar:
    """A compiled guide. Immutable as seen from outside; any thread may ask for a matcher."""

    __slots__ = ("_end_ids", "_matcher", "num_bytes")

    def __init__(self, matcher: LLMatcher, end_ids: tuple[int, ...], num_bytes: int) -> None:
        self._matcher = matcher
        self._end_ids = end_ids
        self.num_bytes = num_bytes  # an estimate

    def matcher(self) -> GuideMatcher:
        return GuideMatcher(self._matcher.deep_copy(), self._end_ids)


class GrammarCompiler:
    """Thread-safe. ``close`` ends its workers."""

    def __init__(
        self,
        tokenizer: LLTokenizer,
        limits: GuideLimits | None = None,
        *,
        max_cache_bytes: int = MAX_CACHE_BYTES,
        num_workers: int = 1,
    ) -> None:
        self._tokenizer = tokenizer
        self._limits = limits or GuideLimits()
        self._max_cache_bytes = max_cache_bytes
        self._end_ids = tuple(tokenizer.eos_tokens)
        self._pool = background_pool("tandem-grammar", num_workers)
        self._lock = threading.Lock()  # guards the three below
        self._cache: OrderedDict[bytes, Grammar] = OrderedDict()
        self._num_cached_bytes = 0
        self._open: dict[bytes, Future[Grammar]] = {}
        self.num_compiled = 0

    @property
    def num_cached_bytes(self) -> int:
        return self._num_cached_bytes

    def cached(self, guide: Guide) -> Grammar | None:
        """Without compiling; makes it the one used last."""
        key = _key(guide)
        with self._lock:
            found = self._cache.get(key)
            if found is not None:
                self._cache.move_to_end(key)
            return found

    def compile(self, guide: Guide) -> Grammar:
        """In the caller's thread when nobody else is at it. Raises: GuideError, UnsupportedGuide."""
        key = _key(guide)
        future, is_mine = self._join(key)
        if is_mine:
            self._run(key, guide, future)
        return future.result()

    def submit(self, guide: Guide, then: Then) -> None:
        """Call ``then`` with the grammar or the error: from a worker, or at once when the grammar is cached."""
        key = _key(guide)
        future, is_mine = self._join(key)
        future.add_done_callback(lambda done: then(_outcome(done)))
        if is_mine:
            self._pool.submit(self._run, key, guide, future)

    def close(self) -> None:
        """Let compiles that have begun end; those that have not fail."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            left, self._open = self._open, {}
        for future in left.values():
            future.set_exception(EngineFailure("the engine was shut down before the grammar was compiled"))

    def _join(self, key: bytes) -> tuple[Future[Grammar], bool]:
        """The compile of a guide, and whether the caller has to run it."""
        with self._lock:
            future = self._open.get(key)
            if future is not None:
                return future, False
            future = Future()
            found = self._cache.get(key)
            if found is None:
                self._open[key] = future
                return future, True
            self._cache.move_to_end(key)
        future.set_result(found)
        return future, False

    def _run(self, key: bytes, guide: Guide, future: Future[Grammar]) -> None:
        try:
            grammar = self._compiled(guide)
        except BaseException as error:
            self._leave(key, None)
            future.set_exception(error)
            return
        self._leave(key, grammar)
        future.set_result(grammar)

    def _compiled(self, guide: Guide) -> Grammar:
        checked = grammar_of(guide, self._limits, is_brief=True)
        matcher = self._matcher_of(checked.text)
        if matcher.is_error():
            raise checked.error(matcher.get_error())
        self.num_compiled += 1
        return Grammar(matcher, self._end_ids, _GRAMMAR_BYTES + _BYTES_PER_GUIDE_BYTE * len(checked.text))

    def _matcher_of(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=parser_limits())
        if not matcher.is_error():
            # The first mask builds most of the lexer: here it costs no engine step anything.
            TokenMask(self._tokenizer.vocab_size).fill(matcher)
        return matcher

    def _leave(self, key: bytes, grammar: Grammar | None) -> None:
        """Close a compile and keep its grammar, the least recently used ones making room."""
        with self._lock:
            self._open.pop(key, None)
            if grammar is None or grammar.num_bytes > self._max_cache_bytes:
                return
            self._cache[key] = grammar
            self._num_cached_bytes += grammar.num_bytes
            while self._num_cached_bytes > self._max_cache_bytes:
                self._num_cached_bytes -= self._cache.popitem(last=False)[1].num_bytes


def _key(guide: Guide) -> bytes:
    return hashlib.sha256(f"{guide.type.value}\0{guide.text}".encode("utf-8", "surrogatepass")).digest()


def _outcome(future: Future[Grammar]) -> Grammar | TandemError:
    error = future.exception()
    if error is None:
        return future.result()
    return error if isinstance(error, TandemError) else EngineFailure(f"the grammar could not be compiled ({type(error).__name__})")
