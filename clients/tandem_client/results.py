"""What a caller asks and gets, the same over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tandem_client.latency import Latency
from tandem_client.text import Sampling

Message = Mapping[str, str]
MODELS = ("tandem", "tandem-fast", "tandem-slow")


@dataclass(frozen=True, slots=True)
class Call:
    """One request: ``messages`` for a chat, ``prompt`` for plain text; exactly one of them.

    ``task`` is the hint for the routing rules. Fields of ``sampling`` that are None take the server's default.
    """

    messages: Sequence[Message] = ()
    prompt: str | None = None
    model: str = "tandem"
    task: str | None = None
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        if bool(self.messages) == (self.prompt is not None):
            raise ValueError("give messages or a prompt, one of the two")


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
    """New text of one choice. ``finish_reason`` (stop or length) is set once per choice, in its last delta."""

    index: int
    text: str
    finish_reason: str | None = None
    path: str = ""
    log_probs: tuple[TokenLogProb, ...] = ()


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
class Choice:
    index: int
    text: str
    finish_reason: str
    log_probs: tuple[TokenLogProb, ...] = ()


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
    def finish_reason(self) -> str:
        """Of the first choice."""
        return self.choices[0].finish_reason
