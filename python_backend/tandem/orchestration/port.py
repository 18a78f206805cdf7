"""The two seams of the router's flow: what Triton hands in and takes out, and how an engine is called.

``tandem.triton`` decodes tensors into :class:`RouterRequest`, calls the service of ``tandem.orchestration.service`` and encodes
each :class:`RouterChunk`. Towards the engines the flow sees only :class:`EnginePort`; in production that is BLS, in unit tests a
fake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from tandem.types import EngineRequest, FinishReason, Path, SequenceDelta


@dataclass(frozen=True, slots=True)
class TextSampling:
    """Sampling as a caller of the text models states it; checked when the flow turns it into SamplingParams.

    None means "not given". Field names are the tensor names of ``tandem.protocol.SAMPLING_INPUTS``.
    """

    max_tokens: int | None = None
    stream: bool = False
    stop_words: tuple[str, ...] = ()
    bad_words: tuple[str, ...] = ()
    end_id: int | None = None
    top_k: int | None = None
    top_p: float | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_tokens: int | None = None
    seed: int | None = None
    num_return_sequences: int | None = None
    return_log_probs: bool = False
    min_p: float | None = None
    top_logprobs: int | None = None
    ignore_eos: bool = False
    logit_bias_ids: tuple[int, ...] = ()
    logit_bias_values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class RouterRequest:
    """One row of one Triton request to the ``router`` model. ``request_id`` may be empty; then nobody can stop it by id."""

    request_id: str
    batch_index: int
    prompt_ids: tuple[int, ...]
    route_features: str  # JSON, written by tandem.orchestration.prepare
    sampling: TextSampling = field(default_factory=TextSampling)
    cache_salt: str = ""  # see tandem.types.CacheHints
    guide_type: str | None = None  # as the caller states it; tandem.protocol.GUIDE_TYPES
    guide: str | None = None


@dataclass(frozen=True, slots=True)
class RouterChunk:
    """One response of the ``router`` model; the fields are its output tensors (``tandem.protocol.ROUTER``)."""

    text_output: str
    finish_reason: FinishReason | None
    batch_index: int
    sequence_index: int
    num_input_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    output_log_probs: tuple[float, ...]
    log_probs_content: str
    path: Path
    engine: str
    decision: str
    decision_record: str = ""  # JSON of tandem.routing.explain.DecisionRecord in the first chunk of a row, else empty


Emit = Callable[[RouterChunk], None]
"""Sends one response to the caller; called from the thread that runs the flow. May raise nothing."""


class EnginePort(Protocol):
    """Calls an engine model by the ``tensorrt_llm`` tensor contract. Thread-safe."""

    def generate(self, engine: str, request: EngineRequest, *, streaming: bool) -> Iterator[SequenceDelta]:
        """Run one request; yields deltas as they come, blocks between them, ends after the last one.

        The contract carries no finish reason, so ``finish_reason`` is None in what a port yields (see
        ``tandem.orchestration.finish``); ``token_ids`` may be empty. ``streaming=False`` yields one delta per sequence.
        Raises: TandemError with the engine's own code (EngineFailure when the engine died).
        """
        ...

    def stop(self, engine: str, request_id: str) -> None:
        """Cancel by the ``stop`` tensor under the same request id. Unknown ids are no error. Never blocks for long.

        Raises nothing: a stop that cannot be delivered is the port's to log, since whoever stops has no use for the error.
        """
        ...
