"""How a build talks to a person: bars on a terminal, plain lines elsewhere. Everything goes to one stream, stderr by default."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_HEARTBEAT_S = 10.0
_QUIET_S = 2.0  # shorter work is not worth a line of a log

Advance = Callable[[float, float], None]
"""Called with (done, total) in any unit. Work that never calls it still shows that it is alive and how long it takes."""


class Reporter(Protocol):
    """What a build reports to."""

    def message(self, text: str) -> None: ...

    def stage(self, description: str) -> AbstractContextManager[Advance]:
        """Around one piece of work."""
        ...


def make_reporter(stream: TextIO | None = None) -> Reporter:
    """Bars when ``stream`` is a terminal, else lines."""
    stream = sys.stderr if stream is None else stream
    return BarReporter(stream) if stream.isatty() else LineReporter(stream)


class BarReporter:
    """One moving bar per stage."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream)

    def message(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def stage(self, description: str) -> Iterator[Advance]:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task(description, total=None)

            def advance(done: float, total: float) -> None:
                progress.update(task, completed=done, total=total)

            yield advance
            progress.update(task, completed=1, total=1)


class LineReporter:
    """A line when a stage has taken two seconds, then one every ten seconds, then one at its end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def message(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    @contextmanager
    def stage(self, description: str) -> Iterator[Advance]:
        started = time.monotonic()
        is_done = threading.Event()
        share: list[float] = []

        def beat() -> None:
            pause = _QUIET_S
            while not is_done.wait(pause):
                percent = f" {share[-1]:.0%}" if share else ""
                self.message(f"{description} …{percent} ({time.monotonic() - started:.0f} s)")
                pause = _HEARTBEAT_S

        ticker = threading.Thread(target=beat, name="progress", daemon=True)
        ticker.start()
        try:
            yield lambda done, total: share.append(done / total)
        finally:
            is_done.set()
            ticker.join()
        seconds = time.monotonic() - started
        if seconds >= _QUIET_S:
            self.message(f"{description}: done in {seconds:.0f} s")
