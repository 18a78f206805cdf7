"""The seam of the client: how a call reaches a server. Two faces, because Python has two kinds of functions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Protocol

from tandem_client.results import Call, Event


class Transport(Protocol):
    """Closing the generator early stops the generation on the server."""

    def stream(self, call: Call) -> Generator[Event, None, None]:
        """One Head, Deltas, one Usage. Raises: ClientError."""
        ...

    def models(self) -> tuple[str, ...]:
        """Names that ``Call.model`` may have. Raises: ClientError."""
        ...

    def close(self) -> None: ...


class AsyncTransport(Protocol):
    """Closing the generator early stops the generation on the server."""

    def stream(self, call: Call) -> AsyncGenerator[Event, None]:
        """One Head, Deltas, one Usage. Raises: ClientError."""
        ...

    async def models(self) -> tuple[str, ...]:
        """Names that ``Call.model`` may have. Raises: ClientError."""
        ...

    async def close(self) -> None: ...
