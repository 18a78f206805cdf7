"""Tool calls out of the text of an answer, while it comes. The guides of :mod:`tandem_client.tools` hold the text to these forms::

    tagged       Let me look.<tool_call>
                 {"name": "f", "arguments": {"x": 1}}
                 </tool_call>
    list         [{"name": "f", "arguments": {"x": 1}}, ...]
    arguments    {"x": 1}

In a string of the arguments anything may stand, the end mark too: the end is found by reading the JSON, never by searching.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from tandem.errors import EngineFailure

CALL_BEGIN, CALL_END = "<tool_call>", "</tool_call>"
CallForm = Literal["tagged", "list", "arguments"]

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)')
_MAX_HEAD_CHARS = 256
_TAILS = {"tagged": re.compile(r"\s*\}\s*</tool_call>"), "list": re.compile(r"\s*\}")}
_MAX_TAIL_CHARS = 64
_BETWEEN_CALLS = " \t\r\n[,]"
_STRUCTURE = re.compile(r'[{}"\\]')


@dataclass(frozen=True, slots=True)
class CallDelta:
    """New text of one call. ``id`` and ``name`` are in the first delta of a call only; ``arguments`` is text of a JSON object."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


class _At(Enum):
    TEXT = "text"  # outside of calls
    HEAD = "head"  # between the begin of a call and its arguments
    ARGUMENTS = "arguments"
    TAIL = "tail"  # between the arguments and the end of the call
    END = "end"  # after the only call


class ToolCallReader:
    """One answer. Feed it with :meth:`push`, then once :meth:`finish`."""

    def __init__(self, form: CallForm, name: str) -> None:
        """``name``: of the function, where the form does not say it (arguments)."""
        self._form = form
        self._name = name
        self._at = _At.HEAD if form == "arguments" else _At.TEXT
        self._held = ""
        self._num_calls = 0
        self._object = _ObjectEnd()

    def finish_reason(self, of_text: str) -> str:
        """The answer's, given that of its text: ``tool_calls`` when it has calls and ended by itself behind a complete one."""
        is_complete = self._num_calls > 0 and self._at in (_At.TEXT, _At.END)
        return "tool_calls" if of_text == "stop" and is_complete else of_text

    def push(self, text: str) -> list[str | CallDelta]:
        """What becomes certain, in order: text for the reader, parts of calls. White space around calls is left out.

        Raises: EngineFailure when the text breaks its form, which the guide rules out.
        """
        self._held += text
        found: list[str | CallDelta] = []
        while self._step(found):
            pass
        return found

    def finish(self) -> list[str | CallDelta]:
        """The answer has ended: text that was held because a call might have begun."""
        held, self._held = self._held, ""
        is_text = self._form == "tagged" and self._at is _At.TEXT
        return [held] if is_text and (held.strip() or (held and not self._num_calls)) else []

    def _step(self, found: list[str | CallDelta]) -> bool:
        """Take something off the front of what is held; False when more text must come first."""
        if not self._held:
            return False
        if self._at is _At.TEXT:
            return self._skip_to_call() if self._form == "list" else self._take_text(found)
        if self._at is _At.HEAD:
            return self._take_head(found)
        if self._at is _At.ARGUMENTS:
            return self._take_arguments(found)
        if self._at is _At.TAIL:
            return self._take_tail()
        if self._held.strip():
            raise _broken()
        return False

    def _take_text(self, found: list[str | CallDelta]) -> bool:
        before, begin, after = self._held.partition(CALL_BEGIN)
        if not begin:
            before = before[: len(before) - _num_begun(before)]
        shown = before.rstrip()
        if shown:
            found.append(shown)
        self._held = after if begin else self._held[len(shown) :]
        if begin:
            self._at = _At.HEAD
        return bool(begin)

    def _skip_to_call(self) -> bool:
        self._held = self._held.lstrip(_BETWEEN_CALLS)
        if self._held:
            self._at = _At.HEAD
        return bool(self._held)

    def _take_head(self, found: list[str | CallDelta]) -> bool:
        if self._form == "arguments":
            name, end = self._name, len(self._held) - len(self._held.lstrip())
            if end == len(self._held):
                return False
        else:
            match = _HEAD.match(self._held)
            if match is None:
                if len(self._held) > _MAX_HEAD_CHARS:
                    raise _broken()
                return False
            name, end = json.loads(match[1]), match.end()
        self._held = self._held[end:]
        found.append(CallDelta(self._num_calls, id=f"call_{secrets.token_hex(12)}", name=name))
        self._num_calls += 1
        self._at, self._object = _At.ARGUMENTS, _ObjectEnd()
        return True

    def _take_arguments(self, found: list[str | CallDelta]) -> bool:
        end = self._object.find(self._held)
        found.append(CallDelta(self._num_calls - 1, self._held[:end]))
        self._held = "" if end is None else self._held[end:]
        if end is not None:
            self._at = _At.END if self._form == "arguments" else _At.TAIL
        return end is not None

    def _take_tail(self) -> bool:
        match = _TAILS[self._form].match(self._held)
        if match is None:
            if len(self._held) > _MAX_TAIL_CHARS:
                raise _broken()
            return False
        self._held = self._held[match.end() :]
        self._at = _At.TEXT
        return True


class _ObjectEnd:
    """Finds where a JSON object ends that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._is_escaped = False

    def find(self, text: str) -> int | None:
        """The index behind the last brace, or None. Raises: EngineFailure when ``text`` begins no object."""
        if self._depth == 0 and not text.startswith("{"):
            raise _broken()
        position = 0
        if self._is_escaped:
            position, self._is_escaped = 1, False
        while match := _STRUCTURE.search(text, position):
            position = match.end()
            char = match[0]
            if char == '"':
                self._in_string = not self._in_string
            elif char == "\\":
                self._is_escaped = position == len(text)
                position += 1
            elif not self._in_string:
                self._depth += 1 if char == "{" else -1
                if self._depth == 0:
                    return position
        return None


def _num_begun(text: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of a call."""
    return next((size for size in range(min(len(CALL_BEGIN) - 1, len(text)), 0, -1) if CALL_BEGIN.startswith(text[-size:])), 0)


def _broken() -> EngineFailure:
    return EngineFailure("the backend wrote a tool call that breaks its form; try again")
