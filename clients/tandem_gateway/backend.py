"""The seam between the gateway and what writes the text."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from tandem_client.text import TextChunk, TextRequest


@dataclass(frozen=True, slots=True)
class BackendHealth:
    """What the backend says of itself. ``parts`` maps a part (a Triton model) to its readiness."""

    is_live: bool
    parts: dict[str, bool]

    @property
    def is_ready(self) -> bool:
        return self.is_live and all(self.parts.values())


class TextBackend(Protocol):
    """Writes text. Used by one event loop."""

    def generate(self, request: TextRequest) -> AsyncGenerator[TextChunk, None]:
        """Run one request; every sequence ends with a chunk that has a finish reason.

        Closing the generator early, or cancelling the task that runs it, stops the engines: the call returns at once and the
        stop goes on by itself. Raises: TandemError of the backend's own code; EngineFailure when the backend is gone.
        """
        ...

    async def health(self) -> BackendHealth:
        """Raises nothing: a backend that does not answer is not live."""
        ...

    async def metrics_text(self) -> str:
        """The backend's own metrics in Prometheus text form, or "" when it has none. Raises: EngineFailure."""
        ...

    async def close(self) -> None:
        """Wait for running stops (bounded), then let go of connections."""
        ...
