"""The thread that hands an engine's deltas to Triton, so that the engine's step loop never waits for it."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from typing import Protocol

from tandem.types import SequenceDelta

_log = logging.getLogger(__name__)


class Receiver(Protocol):
    """One row of one open request. Both methods are called from the sender's thread only."""

    def take(self, deltas: Sequence[SequenceDelta]) -> None:
        """Send what these deltas complete; blocks until Triton has it."""
        ...

    def abandon(self, error: Exception) -> None:
        """``take`` raised ``error``: end the request."""
        ...


class SenderThread:
    """Everything that waits is taken at once and grouped by receiver: what piles up while Triton is busy leaves as one response."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[tuple[Receiver, Sequence[SequenceDelta]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, receiver: Receiver, deltas: Sequence[SequenceDelta]) -> None:
        """Never blocks; may be called from any thread."""
        self._queue.put((receiver, deltas))

    def close(self) -> None:
        """Send what is still waiting, then end."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        is_closing = False
        while not is_closing:
            waiting: dict[Receiver, list[SequenceDelta]] = {}
            item = self._queue.get()
            while True:
                if item is None:
                    is_closing = True
                else:
                    receiver, deltas = item
                    waiting.setdefault(receiver, []).extend(deltas)
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            for receiver, of_receiver in waiting.items():
                self._hand_over(receiver, of_receiver)

    def _hand_over(self, receiver: Receiver, deltas: Sequence[SequenceDelta]) -> None:
        try:
            receiver.take(deltas)
        except Exception as error:  # one request that cannot be answered must not end the others
            _log.exception("a response could not be sent; its request ends")
            self._abandon(receiver, error)

    def _abandon(self, receiver: Receiver, error: Exception) -> None:
        try:
            receiver.abandon(error)
        except Exception:
            _log.exception("the end of a request could not be sent either")
