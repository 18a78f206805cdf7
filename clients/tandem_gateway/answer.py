"""Folds the chunks of one request into choices and holds the backend to its contract. Knows no HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from tandem.errors import Cancelled, EngineFailure
from tandem_client.text import TextChunk, TextRequest
from tandem_client.tool_calls import CallDelta, ToolCallReader
from tandem_client.tools import ToolUse

# No engine thinks where nobody sees it, and predicted outputs are not offered.
_NO_HIDDEN_TOKENS = {"reasoning_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
_FINISH_REASONS = ("", "stop", "length", "cancelled")


@dataclass(slots=True)
class Choice:
    """One answer so far. ``log_probs`` is in the form of OpenAI's chat API, or None when not asked for.

    ``reader`` takes tool calls out of the text; without one, all is text.
    """

    index: int
    reader: ToolCallReader | None = None
    text_parts: list[str] = field(default_factory=list)
    call_parts: list[list[CallDelta]] = field(default_factory=list)  # per call
    log_probs: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None
    log_probs_chars: int = 0
    num_tokens: int = 0
    is_opened: bool = False

    @property
    def text(self) -> str:
        return "".join(self.text_parts)

    def take(self, chunk: TextChunk) -> list[str | CallDelta]:
        """What a chunk adds, in order. Sets the finish reason. Raises: EngineFailure."""
        if self.reader is None:
            parts: list[str | CallDelta] = [chunk.text] if chunk.text else []
            self.finish_reason = chunk.finish_reason or None
        else:
            parts = self.reader.push(chunk.text)
            if chunk.finish_reason:
                parts += self.reader.finish()
                self.finish_reason = self.reader.finish_reason(chunk.finish_reason)
        for part in parts:
            if isinstance(part, str):
                self.text_parts.append(part)
            elif part.id is not None:
                self.call_parts.append([part])
            else:
                self.call_parts[part.index].append(part)
        return parts


@dataclass(frozen=True, slots=True)
class Piece:
    """What one chunk adds to one choice: ``parts`` are texts and parts of tool calls. ``is_first`` is True once per choice.

    ``text_offset`` counts the characters of the tokens before.
    """

    choice: Choice
    is_first: bool
    parts: list[str | CallDelta]
    log_probs: list[dict[str, Any]]
    text_offset: int
    finish_reason: str | None
    path: str

    @property
    def text(self) -> str:
        """All of it, where there are no tool calls."""
        return "".join(part for part in self.parts if isinstance(part, str))


class Answer:
    """The choices of one request; choice ``row * n + sequence`` as OpenAI numbers several prompts with several answers."""

    def __init__(self, request: TextRequest, tools: ToolUse | None = None) -> None:
        self._num_rows = request.num_rows
        self._per_row = request.sampling.num_return_sequences or 1
        self.choices = [Choice(index, None if tools is None else tools.new_reader()) for index in range(request.num_sequences)]
        self._prompt_tokens = [0] * request.num_rows
        self._cached_tokens = [0] * request.num_rows
        self.path = ""
        self.engine = ""
        self.decision = ""
        self.decision_records: list[str] = []
        """JSON, one per row, as the rows began."""

    def add(self, chunk: TextChunk) -> Piece:
        """Raises: EngineFailure when the chunk breaks the contract; Cancelled when the sequence was stopped from elsewhere."""
        choice = self._choice_of(chunk)
        if choice.finish_reason is not None:
            raise EngineFailure("the backend wrote on after the end of an answer")
        if chunk.finish_reason not in _FINISH_REASONS:
            raise EngineFailure("the backend gave a finish reason that is not in its contract")
        if chunk.finish_reason == "cancelled":
            raise Cancelled("the request was stopped before its answer was complete")
        is_first, choice.is_opened = not choice.is_opened, True
        log_probs = _log_probs(chunk.log_probs_content)
        parts = choice.take(chunk)
        offset = choice.log_probs_chars
        choice.log_probs.extend(log_probs)
        choice.log_probs_chars += sum(len(entry["token"]) for entry in log_probs)
        choice.num_tokens = chunk.num_output_tokens
        self._prompt_tokens[chunk.batch_index] = chunk.num_input_tokens
        self._cached_tokens[chunk.batch_index] = chunk.num_cached_tokens
        self.path, self.engine, self.decision = chunk.path, chunk.engine, chunk.decision
        if chunk.decision_record:
            self.decision_records.append(chunk.decision_record)
        return Piece(choice, is_first, parts, log_probs, offset, choice.finish_reason, chunk.path)

    def close(self) -> None:
        """Call when the backend has ended. Raises: EngineFailure when an answer has no end."""
        if any(choice.finish_reason is None for choice in self.choices):
            raise EngineFailure("the backend ended before the answer was complete; try again")

    @property
    def prompt_tokens(self) -> int:
        return sum(self._prompt_tokens)

    @property
    def cached_tokens(self) -> int:
        return sum(self._cached_tokens)

    @property
    def completion_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self.choices)

    @property
    def usage(self) -> dict[str, Any]:
        """Each prompt once, all answers."""
        prompt, completion = self.prompt_tokens, self.completion_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": _NO_HIDDEN_TOKENS,
        }

    def _choice_of(self, chunk: TextChunk) -> Choice:
        if not (0 <= chunk.batch_index < self._num_rows and 0 <= chunk.sequence_index < self._per_row):
            raise EngineFailure("the backend answered for a sequence that was not asked for")
        return self.choices[chunk.batch_index * self._per_row + chunk.sequence_index]


def _log_probs(content: str) -> list[dict[str, Any]]:
    if not content:
        return []
    try:
        parsed = orjson.loads(content)  # strict: no NaN, no Infinity
    except orjson.JSONDecodeError:
        parsed = None
    if not isinstance(parsed, list):
        raise EngineFailure("the backend gave log-probabilities that are no JSON array")
    return parsed
