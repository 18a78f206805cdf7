"""Stop strings, found in text that arrives in pieces.

Text is let through as soon as it can't become part of a match; what could is held back. Which match wins does not depend on how the
text is cut into pieces: the one that is *complete first* (reading character by character); if several are complete with the
same character, the longest of them, which starts leftmost. The stop string and everything after it is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.errors import InvalidRequest

MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 1000


def check_stop_strings(stops: Sequence[str], *, field: str = "stop_words") -> tuple[str, ...]:
    """The stop strings of a request. Raises: InvalidRequest for an empty one, too many, or one that is too long."""
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidRequest(field, f"{len(stops)} strings", f"give at most {MAX_STOP_STRINGS}")
    for stop in stops:
        if not stop:
            raise InvalidRequest(field, '""', "an empty stop string would end every answer at once; leave it out")
        if len(stop) > MAX_STOP_CHARS:
            raise InvalidRequest(field, stop, f"give at most {MAX_STOP_CHARS} characters")
    return tuple(stops)


class StopMatcher:
    """Watches the text of one sequence. Amortised constant work per character and stop string. Not thread-safe.

    One Knuth-Morris-Pratt automaton per stop string: its state is the length of the longest prefix of the stop string that the
    text read so far ends with. The largest state is therefore exactly what must be held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """``stops``: as :func:`check_stop_strings` returns them."""
        self._stops = tuple(dict.fromkeys(stops))
        self._failures = tuple(_failure_table(stop) for stop in self._stops)
        self._states = [0] * len(self._stops)
        self._held = ""
        self.matched: str | None = None
        """The stop string that was found, or None."""

    def push(self, text: str) -> str:
        """The text that may be shown now. After a match: what stood before it, and from then on nothing."""
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        seen = self._held + text
        for position in range(len(self._held), len(seen)):
            self._step(seen[position])
            if self.matched is not None:
                self._held = ""
                return seen[: position + 1 - len(self.matched)]
        num_shown = len(seen) - max(self._states)
        self._held = seen[num_shown:]
        return seen[:num_shown]

    def flush(self) -> str:
        """The sequence has ended without (another) match: the text that was held back."""
        held, self._held = self._held, ""
        return held

    def _step(self, char: str) -> None:
        for index, (stop, failure) in enumerate(zip(self._stops, self._failures, strict=True)):
            state = self._states[index]
            while state and stop[state] != char:
                state = failure[state]
            if stop[state] == char:
                state += 1
            self._states[index] = state
            if state == len(stop) and (self.matched is None or len(stop) > len(self.matched)):
                self.matched = stop


def _failure_table(stop: str) -> tuple[int, ...]:
    """``table[k]``: length of the longest proper prefix of ``stop`` that ``stop[:k]`` ends with. [len(stop)]"""
    table = [0] * len(stop)
    state = 0
    for position in range(1, len(stop) - 1):
        while state and stop[state] != stop[position]:
            state = table[state]
        if stop[state] == stop[position]:
            state += 1
        table[position + 1] = state
    return tuple(table)
