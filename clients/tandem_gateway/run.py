"""One request while it runs: chunks of the backend and everything that may end it early, in one mailbox.

::

    backend.generate ─► pump task ─┐
    deadline timer ────────────────┤
    client gone, drain ── fail() ──┼─► mailbox ─► batches()
    ping timer ────────────────────┘

The first of end and failure wins. A failure stops the backend at once, even while the reader of the mailbox is held up by a
slow client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from enum import Enum
from types import TracebackType

from tandem.errors import DeadlineExceeded, EngineFailure, TandemError
from tandem_client.text import TextChunk, TextRequest
from tandem_gateway.backend import TextBackend

_log = logging.getLogger(__name__)


class _Mark(Enum):
    END = "end"
    PING = "ping"


class Run:
    """Use as ``async with``; leaving it stops the backend if it still writes."""

    def __init__(self, backend: TextBackend, request: TextRequest, *, timeout_s: float, ping_interval_s: float | None) -> None:
        self._backend = backend
        self._request = request
        self._timeout_s = timeout_s
        self._ping_interval_s = ping_interval_s
        self._mailbox: asyncio.Queue[TextChunk | TandemError | _Mark] = asyncio.Queue()
        self._is_over = False
        self._pump: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Run:
        loop = asyncio.get_running_loop()
        self._pump = loop.create_task(self._pump_chunks())
        self._deadline = loop.call_later(
            self._timeout_s, self.fail, DeadlineExceeded(f"the answer took longer than the limit of {self._timeout_s:g} s")
        )
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._pump is not None
        assert self._deadline is not None
        self._is_over = True
        self._deadline.cancel()
        self._pump.cancel()
        await asyncio.wait([self._pump])

    def fail(self, error: TandemError) -> None:
        """End this run with ``error`` unless it is over already. Chunks that came before are still delivered."""
        if self._is_over:
            return
        self._is_over = True
        self._mailbox.put_nowait(error)
        if self._pump is not None:
            self._pump.cancel()

    async def batches(self) -> AsyncGenerator[list[TextChunk], None]:
        """Chunks as they come, all that wait at one time in one list; an empty list when nothing came for a ping interval.

        Raises: TandemError when the run failed.
        """
        while True:
            ping = self._start_ping()
            items = [await self._mailbox.get()]
            if ping is not None:
                ping.cancel()
            while not self._mailbox.empty():
                items.append(self._mailbox.get_nowait())
            chunks = [item for item in items if isinstance(item, TextChunk)]
            if chunks or items == [_Mark.PING]:
                yield chunks
            last = items[-1]
            if isinstance(last, TandemError):
                raise last
            if last is _Mark.END:
                return

    def _start_ping(self) -> asyncio.TimerHandle | None:
        if self._ping_interval_s is None:
            return None
        return asyncio.get_running_loop().call_later(self._ping_interval_s, self._mailbox.put_nowait, _Mark.PING)

    async def _pump_chunks(self) -> None:
        try:
            async with aclosing(self._backend.generate(self._request)) as chunks:
                async for chunk in chunks:
                    self._mailbox.put_nowait(chunk)
        except TandemError as error:
            self.fail(error)
        except Exception:
            _log.exception("request %s: the backend raised something unexpected", self._request.request_id)
            self.fail(EngineFailure("the backend failed unexpectedly; try again"))
        else:
            if not self._is_over:
                self._is_over = True
                self._mailbox.put_nowait(_Mark.END)
