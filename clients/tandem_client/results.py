"""What a caller asks and gets, the same over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tandem_client.guide import Guide
from tandem_client.latency import Latency
from tandem_client.text import Sampling
from tandem_client.tool_calls import CallDelta
from tandem_client.tools import ToolUse

Message = Mapping[str, Any]
"""OpenAI's form: role and content; tool_calls of an assistant, tool_call_id of a tool."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request: ``messages`` for a chat, ``prompt`` for plain text; exactly one of them.

    ``task`` is the hint for the routing rules. Fields of ``sampling`` that are None take the server's default. ``guide`` and
    ``tools`` both say what the answer must look like, so only one of them can be given.
    """

    messages: Sequence[Message] = ()
    prompt: str | None = None
    model: str = "tandem"
    task: str | None = None
    sampling: Sampling = field(default_factory=Sampling)
    guide: Guide | None = None
    tools: ToolUse | None = None

    def __post_init__(self) -> None:
        if bool(self.messages) == (self.prompt is not None):
            raise ValueError("give messages or a prompt, one of the two")
        if self.guide is not None and self.tools is not None:
            raise ValueError("give a guide or tools, one of the two")
        if self.prompt is not None and self.tools is not None:
            raise ValueError("tools are shown by the chat template: give messages")


@dataclass(frozen=True, slots=True)
class Head:
    """Known before the first text. ``request_id`` names the request in the server's log."""

    request_id: str
    path: str
    engine: str
    decision: str


@dataclass(frozen=True, slots=True)
class TokenLogProb:
    """One generated token and the alternatives at its place, best first."""

    token: str
    log_prob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """New text of one choice, or new parts of its tool calls, which come after the text.

    ``finish_reason`` (stop, length or tool_calls) is set once per choice, in its last delta.
    """

    index: int
    text: str
    finish_reason: str | None = None
    path: str = ""
    log_probs: tuple[TokenLogProb, ...] = ()
    tool_calls: tuple[CallDelta, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """``cached_tokens`` are the part of the prompt tokens that the server did not have to compute."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


Event = Head | Delta | Usage
"""What a transport yields: one Head, Deltas, one Usage."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """``arguments`` is the text of a JSON object that is valid under the schema of the tool; cut off when the answer was."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Choice:
    index: int
    text: str
    finish_reason: str
    log_probs: tuple[TokenLogProb, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def message(self) -> Message:
        """To send back as part of a conversation."""
        if not self.tool_calls:
            return {"role": "assistant", "content": self.text}
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in self.tool_calls
        ]
        return {"role": "assistant", "content": self.text or None, "tool_calls": calls}


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer. ``path`` is the one that wrote the last text."""

    choices: tuple[Choice, ...]
    usage: Usage
    request_id: str
    path: str
    engine: str
    decision: str
    latency: Latency

    @property
    def text(self) -> str:
        """Of the first choice."""
        return self.choices[0].text

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Of the first choice."""
        return self.choices[0].tool_calls

    @property
    def finish_reason(self) -> str:
        """Of the first choice."""
        return self.choices[0].finish_reason
