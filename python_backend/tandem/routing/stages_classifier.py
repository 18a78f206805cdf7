"""The second stage: the embedding classifier, behind a port, since it runs as a Triton model of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tandem.routing.decision import Outcome
from tandem.routing.stages import Cutoff, Declined, Opinion, Question


@dataclass(frozen=True, slots=True)
class Classified:
    """``fast_suffices``: probability, not yet checked. ``task``: the likeliest class."""

    fast_suffices: float
    task: str


class ClassifierPort(Protocol):
    """Calls the model ``route_classifier``. Thread-safe."""

    def classify(self, text: str) -> Classified:
        """Raises: TandemError when the model does not answer."""
        ...


class ClassifierStage:
    """Thread-safe."""

    name = "classifier"

    def __init__(self, port: ClassifierPort, engines: Mapping[str, str]) -> None:
        """``engines``: task class -> engine on the fast path."""
        self._port = port
        self._engines = dict(engines)

    def ask(self, question: Question, budget_ms: float, cutoff: Cutoff) -> Opinion:
        """A call can't be taken back: one that was cut off ends by itself."""
        if not question.text:
            raise Declined(Outcome.SKIPPED)
        seen = self._port.classify(question.text)
        return Opinion(seen.fast_suffices, seen.task, f"task={seen.task},p={seen.fast_suffices:.2f}", self._engines.get(seen.task))
