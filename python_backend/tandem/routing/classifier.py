"""The embedding classifier: what a prompt is, and how likely the fast path is good enough for it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tandem.errors import SetupError
from tandem.routing.claims import neutral
from tandem.routing.classifier_features import ngram_counts, parts_of, surface_vector
from tandem.routing.encoder import SentenceEncoder
from tandem.routing.features import extract_features
from tandem.routing.head import FloatArray, Head, load_head
from tandem.routing.intents import normalize

_LEFTOVERS = re.compile(r"^[\W_]+")


@dataclass(frozen=True, slots=True)
class ClassifierResult:
    """``fast_suffices`` and ``task_probs`` (in the order of ``RouteClassifier.tasks``) lie in 0..1; ``task`` is the likeliest."""

    fast_suffices: float
    task: str
    task_probs: tuple[float, ...]
    cost_ms: float


class Encoder(Protocol):
    """What the classifier needs of :class:`tandem.routing.encoder.SentenceEncoder`."""

    @property
    def identity(self) -> str: ...

    def layer_means(self, text: str) -> npt.NDArray[np.float32]:
        """[num_layers, hidden_size]"""
        ...


@dataclass(frozen=True, slots=True)
class Described:
    """A prompt as the head sees it. ``layer_means`` [3 * num_layers, hidden_size]: of the whole, of its beginning and of its end.

    Mean pooling drowns an instruction of one line in its material of thirty; hence the parts.
    """

    layer_means: FloatArray
    ngrams: dict[int, float]
    surface: FloatArray


def describe(encoder: Encoder, text: str) -> Described:
    """Everything that is computed from a prompt, of bounded cost whatever its length. Training and serving both start here."""
    excerpt = extract_features(text, num_prompt_tokens=0, num_turns=1).text
    features = extract_features(_request_of(excerpt) or excerpt, num_prompt_tokens=0, num_turns=1)
    views = {part: encoder.layer_means(part) for part in dict.fromkeys((features.text, *parts_of(features.text)))}
    means = np.concatenate([views[part] for part in (features.text, *parts_of(features.text))])
    return Described(means, ngram_counts(normalize(features.text)), surface_vector(features))


def _request_of(text: str) -> str:
    """``text`` without what it says about its own routing, and without the marks that a claim at its start leaves behind."""
    rest = neutral(text)
    return rest if rest == text.strip() else _LEFTOVERS.sub("", rest)


class RouteClassifier:
    """Immutable and thread-safe. A result depends on its own text only, never on its neighbours in a batch."""

    @classmethod
    def load(cls, encoder_dir: Path, head_dir: Path | None = None) -> RouteClassifier:
        """``head_dir`` None: the shipped head. Raises: SetupError."""
        return cls(SentenceEncoder.load(encoder_dir), load_head(head_dir))

    def __init__(self, encoder: Encoder, head: Head) -> None:
        """Raises: SetupError when the head was trained on another encoder."""
        if encoder.identity != head.encoder:
            raise SetupError(
                f"the route head was trained on encoder {head.encoder}, but this is {encoder.identity}; train it again "
                "(`tandem route train`)"
            )
        self._encoder = encoder
        self._head = head

    @property
    def tasks(self) -> tuple[str, ...]:
        return self._head.tasks

    @property
    def head(self) -> Head:
        return self._head

    def score(self, texts: Sequence[str]) -> list[ClassifierResult]:
        """One result per text, in their order."""
        return [self._score(text) for text in texts]

    def _score(self, text: str) -> ClassifierResult:
        start_ns = time.perf_counter_ns()
        seen = describe(self._encoder, text)
        fast_suffices, task_probs = self._head.score(seen.layer_means, seen.ngrams, seen.surface)
        cost_ms = (time.perf_counter_ns() - start_ns) / 1e6
        return ClassifierResult(fast_suffices, self.tasks[int(task_probs.argmax())], tuple(task_probs.tolist()), cost_ms)
