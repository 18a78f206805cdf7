"""Where one sequence stands in its grammar: which tokens may come next, and which one must.

The end token is not llguidance's but the request's: it may come exactly where the grammar accepts. A mask is never empty: where
nothing but the end is left, the grammar is complete and the sequence ends without another step.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from tandem.errors import EngineFailure, TandemError
from tandem.guided.errors import UnsupportedGuide

_log = logging.getLogger(__name__)

_TOO_COMPLEX = ("ParserTooComplex", "LexerTooComplex")
_LIMIT = re.compile(r"too many|too big|too complex|; max is |limit|fuel")

Bits = npt.NDArray[np.uint32]


class TokenMask:
    """Memory for the mask of one row: bit ``i`` of the flat array is token ``i``. Reused from row to row."""

    __slots__ = ("_address", "_num_bytes", "_vocab_size", "bits")

    def __init__(self, vocab_size: int) -> None:
        self.bits: Bits = np.zeros((vocab_size + 31) // 32, np.uint32)
        self._vocab_size = vocab_size
        self._address = self.bits.ctypes.data
        self._num_bytes = self.bits.nbytes

    def fill(self, matcher: LLMatcher) -> None:
        """What llguidance allows next."""
        matcher.unsafe_compute_mask_ptr(self._address, self._num_bytes)

    def allows(self, token: int) -> bool:
        return bool(int(self.bits[token >> 5]) >> (token & 31) & 1)

    def set(self, token: int, *, is_allowed: bool) -> None:
        bit = np.uint32(1 << (token & 31))
        self.bits[token >> 5] = self.bits[token >> 5] | bit if is_allowed else self.bits[token >> 5] & ~bit

    @property
    def has_one(self) -> bool:
        """True when exactly one token is allowed."""
        words = self.bits[self.bits != 0]
        return len(words) == 1 and int(words[0]).bit_count() == 1

    def to_forbidden(self) -> npt.NDArray[np.bool_]:
        """True where a token is not allowed. [vocab_size], a fresh array"""
        return np.unpackbits(~self.bits.view(np.uint8), count=self._vocab_size, bitorder="little").view(np.bool_)


class GuideMatcher:
    """The state of one sequence. Owned by the engine thread; ``copy`` for siblings and what-ifs is cheap."""

    __slots__ = ("_end_ids", "_matcher")

    def __init__(self, matcher: LLMatcher, end_ids: tuple[int, ...]) -> None:
        """``end_ids``: llguidance's own end tokens, never part of a mask."""
        self._matcher = matcher
        self._end_ids = end_ids

    def copy(self) -> GuideMatcher:
        return GuideMatcher(self._matcher.deep_copy(), self._end_ids)

    @property
    def is_accepting(self) -> bool:
        """True where the text so far is a whole answer."""
        return self._matcher.is_accepting()

    @property
    def is_complete(self) -> bool:
        """True where the text so far is a whole answer and nothing can follow it."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def fill(self, mask: TokenMask, end_id: int | None) -> None:
        """The tokens that may come next, the end token among them where the grammar accepts.

        Modifies ``mask``. Raises: UnsupportedGuide when the grammar is too ambiguous for one step's work.
        """
        matcher = self._matcher
        mask.fill(matcher)
        if matcher.is_error():
            raise self._error()
        for token in self._end_ids:
            mask.set(token, is_allowed=False)
        if end_id is not None:
            mask.set(end_id, is_allowed=matcher.is_accepting())

    def forced_tokens(self) -> list[int]:
        """The tokens that must come next, as the tokenizer would split the forced text; empty where there is a choice."""
        return self._matcher.compute_ff_tokens()

    def consume(self, token: int) -> None:
        """Take a token that the mask allowed. Raises: UnsupportedGuide, EngineFailure."""
        if not self._matcher.consume_token(token):
            raise self._error()

    def count_accepted(self, tokens: Sequence[int]) -> int:
        """How many of these tokens could come next, in order; changes nothing. For drafts."""
        return self._matcher.validate_tokens(list(tokens))

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens consumed. Raises: EngineFailure when there are not as many."""
        if num_tokens and not self._matcher.rollback(num_tokens):
            raise self._error()

    def _error(self) -> TandemError:
        message = self._matcher.get_error().split("\n")[0]
        if self._matcher.stop_reason() in _TOO_COMPLEX or _LIMIT.search(message):
            return UnsupportedGuide("$", "the grammar", "it is too ambiguous to find the next token in bounded time; simplify it")
        _log.error("a matcher failed: %s", message)  # it never quotes the guide (verbose_errors is off)
        return EngineFailure("the grammar of this request got into a state it cannot leave; try again or simplify the guide")
