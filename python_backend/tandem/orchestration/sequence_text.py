"""One sequence of an answer: its tokens go in, the text and the token reports that may be shown come out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tandem.errors import EngineFailure
from tandem.orchestration.log_probs import TokenReport
from tandem.text.detokenizer import Detokenizer
from tandem.text.stop_strings import StopMatcher
from tandem.text.tokenizer import Tokenizer
from tandem.types import FinishReason


@dataclass(frozen=True, slots=True)
class Piece:
    """What became showable since the last piece."""

    text: str
    reports: tuple[TokenReport, ...]

    @property
    def is_empty(self) -> bool:
        return not self.text and not self.reports


class SequenceText:
    """Detokenizer and stop strings of one sequence. Not thread-safe.

    A token is reported once the shown text has gone past the place where the token's text begins, so that text and reports
    stay together::

        tokens     "The"  " end"  "."  " E" "ND"        stop string " END"
        begins at   0      3       7    8    10
        shown      "The end."           (cut at 8)  ->  reported: the first three; counted: all five
    """

    def __init__(self, index: int, tokenizer: Tokenizer, stop_strings: tuple[str, ...]) -> None:
        self.index = index
        self.num_tokens = 0
        self.finish_reason: FinishReason | None = None
        self._detokenizer = Detokenizer(tokenizer)
        self._matcher = StopMatcher(stop_strings)
        self._parts: list[str] = []
        self._reports: list[TokenReport] = []
        self._waiting: deque[tuple[int, TokenReport]] = deque()  # (where the token's text begins, report)
        self._num_decoded_chars = 0
        self._num_shown_chars = 0

    @property
    def has_ended(self) -> bool:
        return self.finish_reason is not None

    @property
    def is_stopped_by_string(self) -> bool:
        return self._matcher.matched is not None

    def push(self, token_id: int, report: TokenReport | None) -> None:
        """Take one generated token. When it completes a stop string the sequence ends with STOP. Raises: EngineFailure."""
        self.num_tokens += 1
        if report is not None:
            self._waiting.append((self._num_decoded_chars, report))
        try:
            text = self._detokenizer.push(token_id)
        except KeyError:
            raise EngineFailure(f"the engine generated the id {token_id}, which its tokenizer does not have") from None
        self._feed(text)
        if self.is_stopped_by_string:
            self.finish_reason = FinishReason.STOP
            self._release_reports(is_end=False)

    def end(self, reason: FinishReason) -> None:
        """No token follows: let go of what was held back. A stop string that the last held bytes complete still cuts."""
        self.finish_reason = reason
        self._feed(self._detokenizer.flush())
        if self.is_stopped_by_string:
            self.finish_reason = FinishReason.STOP
        else:
            self._show(self._matcher.flush())
        self._release_reports(is_end=not self.is_stopped_by_string)

    def take(self) -> Piece:
        """What became showable since the last call."""
        if not self.has_ended:
            self._release_reports(is_end=False)
        piece = Piece("".join(self._parts), tuple(self._reports))
        self._parts.clear()
        self._reports.clear()
        return piece

    def _feed(self, text: str) -> None:
        self._num_decoded_chars += len(text)
        self._show(self._matcher.push(text))

    def _show(self, text: str) -> None:
        if text:
            self._num_shown_chars += len(text)
            self._parts.append(text)

    def _release_reports(self, *, is_end: bool) -> None:
        while self._waiting and (is_end or self._waiting[0][0] < self._num_shown_chars):
            self._reports.append(self._waiting.popleft()[1])
