"""Folding events into an answer; no input or output, so that both faces of the client share it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tandem_client.errors import ApiError, ClientError
from tandem_client.guide import Guide
from tandem_client.latency import measure
from tandem_client.results import Answer, Call, Choice, Delta, Event, Head, Message, TokenLogProb, ToolCall, Usage
from tandem_client.text import Sampling
from tandem_client.tool_calls import CallDelta
from tandem_client.tools import Tool, ToolUse


def chat_call(
    messages: str | Sequence[Message],
    *,
    model: str,
    task: str | None,
    sampling: Sampling | None,
    guide: Guide | None,
    tools: Sequence[Tool],
    tool_choice: str,
    parallel_tool_calls: bool,
) -> Call:
    """A text is one user message."""
    given = ({"role": "user", "content": messages},) if isinstance(messages, str) else tuple(messages)
    use = _tool_use(tuple(tools), tool_choice, is_parallel=parallel_tool_calls)
    return Call(messages=given, model=model, task=task, sampling=sampling or Sampling(), guide=guide, tools=use)


def prompt_call(prompt: str, *, model: str, task: str | None, sampling: Sampling | None, guide: Guide | None) -> Call:
    return Call(prompt=prompt, model=model, task=task, sampling=sampling or Sampling(), guide=guide)


def _tool_use(tools: tuple[Tool, ...], choice: str, *, is_parallel: bool) -> ToolUse | None:
    names = tuple(tool.name for tool in tools)
    if choice not in ("none", "auto", "required", *names) or (choice == "required" and not tools):
        raise ValueError(f"tool_choice: got {choice}; give none, auto, required or the name of a tool")
    if choice == "none" or not tools:
        return None
    if choice in ("auto", "required"):
        return ToolUse(tools, "auto" if choice == "auto" else "required", names, is_parallel)
    return ToolUse(tools, "named", (choice,), is_parallel)


class AnswerBuilder:
    """Takes the events of one call as they arrive and keeps their times. ``clock`` gives seconds."""

    def __init__(self) -> None:
        self._sent_s = self._end_s = time.perf_counter()
        self._content_s: list[float] = []
        self._head: Head | None = None
        self._usage: Usage | None = None
        self._texts: dict[int, list[str]] = {}
        self._log_probs: dict[int, list[TokenLogProb]] = {}
        self._finish_reasons: dict[int, str] = {}
        self._calls: dict[int, dict[int, list[CallDelta]]] = {}  # choice -> call -> its parts
        self._path = ""

    def add(self, event: Event) -> None:
        self._end_s = time.perf_counter()
        if isinstance(event, Head):
            self._head = event
        elif isinstance(event, Usage):
            self._usage = event
        else:
            self._add_delta(event)

    @property
    def partial_text(self) -> str:
        """Of the first choice, so far."""
        return "".join(self._texts.get(0, ()))

    def finish(self) -> Answer:
        """Raises: ApiError when the events were not those of a complete answer."""
        if self._head is None or self._usage is None or not self._texts or self._finish_reasons.keys() != self._texts.keys():
            raise ApiError("the answer ended before it was complete", status=502, code="incomplete_answer")
        choices = tuple(
            Choice(index, "".join(parts), self._finish_reasons[index], tuple(self._log_probs[index]), self._tool_calls(index))
            for index, parts in sorted(self._texts.items())
        )
        latency = measure(
            sent_s=self._sent_s, content_s=self._content_s, end_s=self._end_s, num_output_tokens=self._usage.completion_tokens
        )
        head = self._head
        return Answer(choices, self._usage, head.request_id, self._path or head.path, head.engine, head.decision, latency)

    def note_failure(self, error: ClientError) -> None:
        """Give the error what had arrived."""
        error.partial_text = self.partial_text

    def _add_delta(self, delta: Delta) -> None:
        texts = self._texts.setdefault(delta.index, [])
        self._log_probs.setdefault(delta.index, []).extend(delta.log_probs)
        for part in delta.tool_calls:
            self._calls.setdefault(delta.index, {}).setdefault(part.index, []).append(part)
        if delta.text:
            texts.append(delta.text)
        if delta.text or delta.tool_calls:
            self._content_s.append(self._end_s)
        if delta.finish_reason is not None:
            self._finish_reasons[delta.index] = delta.finish_reason
        self._path = delta.path or self._path

    def _tool_calls(self, index: int) -> tuple[ToolCall, ...]:
        calls = self._calls.get(index, {})
        return tuple(
            ToolCall(parts[0].id or "", parts[0].name or "", "".join(part.arguments for part in parts))
            for _, parts in sorted(calls.items())
        )
