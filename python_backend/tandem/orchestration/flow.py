"""One request, from its decision to its last chunk. A flow runs in one thread; ``cancel`` may be called from any other."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Mapping

from tandem.capabilities import fitted
from tandem.errors import EngineFailure
from tandem.orchestration.admission import AdmissionQueue, Place
from tandem.orchestration.config import RouterConfig
from tandem.orchestration.decider import CallLatency, Decider
from tandem.orchestration.finish import inferred_finish
from tandem.orchestration.log_probs import TokenReport, content_json, finite_log_prob
from tandem.orchestration.port import Emit, EnginePort, RouterChunk, RouterRequest
from tandem.orchestration.sampling import CheckedSampling, check_sampling
from tandem.orchestration.sequence_text import SequenceText
from tandem.routing.decision import RouteDecision
from tandem.routing.explain import DecisionRecord
from tandem.routing.features import RouteFeatures
from tandem.scheduling.length import RequestKind
from tandem.types import CacheHints, EngineRequest, FinishReason, RequestId, SequenceDelta, TokenLogProbs

_NO_TOP = TokenLogProbs((), ())


class Flow:
    """The life of one :class:`RouterRequest`:

    1. decide the path, check the sampling against the chosen engine, wait for a place in front of it;
    2. call the engine under an id of its own, ``<request id>.<row>.<8 hex>``;
    3. per delta: tokens to text, stop strings, finish reason, one chunk;
    4. stop the engine when text has ended every sequence, or on cancel; drain it to its last delta.

    Every sequence gets exactly one chunk with a finish reason, unless ``run`` raises; chunks already emitted stay.
    """

    def __init__(
        self,
        request: RouterRequest,
        config: RouterConfig,
        decider: Decider,
        port: EnginePort,
        admission: Mapping[str, AdmissionQueue],
    ) -> None:
        """``admission``: the queue in front of each engine, by name."""
        self.request = request
        self.child_id = f"{request.request_id or 'request'}.{request.batch_index}.{secrets.token_hex(4)}"
        self.decision: RouteDecision | None = None
        """Set once decided; for metrics and logs."""
        self._config = config
        self._decider = decider
        self._port = port
        self._admission = admission
        self._lock = threading.Lock()  # guards the three below
        self._is_cancelled = False
        self._place: Place | None = None
        self._called_engine: str | None = None

    @property
    def is_cancelled(self) -> bool:
        return self._is_cancelled

    def cancel(self) -> None:
        """End this flow with finish reason "cancelled": at once while it waits, at the engine's next delta when it runs.

        Any thread, any time, any number of times.
        """
        with self._lock:
            self._is_cancelled = True
            engine, place = self._called_engine, self._place
        if place is not None:
            place.cancel()
        if engine is not None:
            self._port.stop(engine, self.child_id)

    def run(self, emit: Emit) -> None:
        """Answer the request. Call once.

        Raises: InvalidRequest and Overloaded before anything is emitted; whatever the engine raises, as it is.
        """
        guide = self._config.guides.resolve(self.request.guide_type, self.request.guide)
        features = RouteFeatures.from_json(self.request.route_features)
        record = self._decider.decide(self.request, features)
        self.decision = record.decision
        engine = self._config.engine(record.decision.engine)
        checked = check_sampling(self.request.sampling, self.request.prompt_ids, engine, self._config.default_max_tokens)
        asked = EngineRequest(
            RequestId(self.child_id), self.request.prompt_ids, checked.params, CacheHints(self.request.cache_salt), guide
        )
        asked = fitted(engine.name, engine.capabilities, asked, self._config.tenants)
        answer = _Answer(self.request, record, checked, self._config, emit)
        place = self._admission[engine.name].join(
            RequestKind(features.task, checked.params.max_tokens), len(self.request.prompt_ids), features.slo_ttft_ms
        )
        self._decider.note_session(self.request, features, engine.name, 0)
        num_output_tokens: int | None = None
        try:
            if not (self._wait_for(place) and self._enter(engine.name)):
                answer.end_all(FinishReason.CANCELLED)
                return
            self._call(engine.name, asked, answer, has_stop_strings=bool(checked.stop_strings))
            num_output_tokens = None if self._is_cancelled else answer.num_output_tokens
            self._decider.note_session(self.request, features, engine.name, answer.num_output_tokens)
        finally:
            place.leave(num_output_tokens)

    def _wait_for(self, place: Place) -> bool:
        """Wait in front of the engine; False when the flow was cancelled."""
        with self._lock:
            if self._is_cancelled:
                return False
            self._place = place
        return place.wait()

    def _call(self, engine: str, request: EngineRequest, answer: _Answer, *, has_stop_strings: bool) -> None:
        is_streaming = self.request.sampling.stream or has_stop_strings
        latency = CallLatency(time.monotonic(), self._admission[engine].num_in_flight, len(self.request.prompt_ids))
        deltas = self._port.generate(engine, request, streaming=is_streaming)
        try:
            self._relay(_timed(deltas, latency), answer, engine, is_streaming=is_streaming)
            if is_streaming and not self._is_cancelled:
                self._decider.learn_latency(engine, latency)
        except BaseException:
            self._port.stop(engine, self.child_id)
            raise

    def _enter(self, engine: str) -> bool:
        """Note which engine to stop from now on; False when the flow was cancelled before."""
        with self._lock:
            if not self._is_cancelled:
                self._called_engine = engine
            return not self._is_cancelled

    def _relay(self, deltas: Iterator[SequenceDelta], answer: _Answer, engine: str, *, is_streaming: bool) -> None:
        is_complete = is_stop_sent = False
        for delta in deltas:
            is_complete |= delta.is_last
            is_cancelled = self._is_cancelled
            answer.take_delta(delta, is_streaming=is_streaming, is_cancelled=is_cancelled)
            if is_cancelled:
                answer.end_all(FinishReason.CANCELLED)
            # After a cancel this repeats the stop: the first may have come before the engine knew the id.
            if answer.has_ended and not delta.is_last and not is_stop_sent:
                self._port.stop(engine, self.child_id)
                is_stop_sent = True
        if not (is_complete or answer.has_ended or self._is_cancelled):
            raise EngineFailure(f"{engine} ended its answer without a last part; try again")
        answer.end_all(FinishReason.CANCELLED if self._is_cancelled else FinishReason.STOP)


def _timed(deltas: Iterator[SequenceDelta], latency: CallLatency) -> Iterator[SequenceDelta]:
    """The same deltas; notes when those of the first sequence come."""
    for delta in deltas:
        if delta.sequence_index == 0:
            latency.note(time.monotonic(), len(delta.token_ids), delta.num_cached_tokens)
        yield delta


class _Answer:
    """The sequences of one answer and the chunks they become."""

    def __init__(
        self, request: RouterRequest, record: DecisionRecord, checked: CheckedSampling, config: RouterConfig, emit: Emit
    ) -> None:
        self._request = request
        self._decision = record.decision
        self._decision_line = record.decision.line
        self._record = record.to_json()  # goes out once, with the first chunk
        self._params = checked.params
        self._tokenizer = config.tokenizer
        self._emit = emit
        self._num_cached_tokens = 0
        self._sequences = [
            SequenceText(index, self._tokenizer, checked.stop_strings) for index in range(checked.params.num_return_sequences)
        ]

    @property
    def has_ended(self) -> bool:
        return all(sequence.has_ended for sequence in self._sequences)

    @property
    def num_output_tokens(self) -> int:
        """Of the longest sequence."""
        return max(sequence.num_tokens for sequence in self._sequences)

    def take_delta(self, delta: SequenceDelta, *, is_streaming: bool, is_cancelled: bool) -> None:
        """Emit what a delta makes showable. One for a sequence that has ended (stopped while its siblings run) is dropped."""
        if not 0 <= delta.sequence_index < len(self._sequences):
            raise EngineFailure(f"the engine answered for sequence {delta.sequence_index}, which was not asked for")
        self._num_cached_tokens = delta.num_cached_tokens
        sequence = self._sequences[delta.sequence_index]
        if sequence.has_ended:
            return
        for token_id, report in zip(delta.token_ids, self._reports(delta), strict=True):
            sequence.push(token_id, report)
            if sequence.has_ended:
                break
        else:
            reason = inferred_finish(
                num_new_tokens=len(delta.token_ids),
                num_tokens=sequence.num_tokens,
                max_tokens=self._params.max_tokens,
                is_streaming=is_streaming,
                is_last=delta.is_last,
                is_cancelled=is_cancelled,
            )
            if reason is not None:
                sequence.end(reason)
        self._emit_piece(sequence)

    def end_all(self, reason: FinishReason) -> None:
        """End every sequence that still runs."""
        for sequence in self._sequences:
            if not sequence.has_ended:
                sequence.end(reason)
                self._emit_piece(sequence)

    def _reports(self, delta: SequenceDelta) -> list[TokenReport | None]:
        """One per token of the delta; None each unless log-probabilities were asked for. Raises: EngineFailure."""
        num_tokens = len(delta.token_ids)
        if not self._params.return_log_probs:
            return [None] * num_tokens
        tops = delta.top if self._params.top_logprobs else (_NO_TOP,) * num_tokens
        if len(delta.log_probs) != num_tokens or len(tops) != num_tokens:
            raise EngineFailure("the engine gave tokens without the log-probabilities that were asked for")
        return [
            TokenReport(token_id, finite_log_prob(log_prob), top)
            for token_id, log_prob, top in zip(delta.token_ids, delta.log_probs, tops, strict=True)
        ]

    def _emit_piece(self, sequence: SequenceText) -> None:
        """One chunk: of a stream whatever is showable, else everything at the end. Nothing is sent while all is held back."""
        if not (sequence.has_ended or self._request.sampling.stream):
            return
        piece = sequence.take()
        if piece.is_empty and not sequence.has_ended:
            return
        self._emit(
            RouterChunk(
                text_output=piece.text,
                finish_reason=sequence.finish_reason,
                batch_index=self._request.batch_index,
                sequence_index=sequence.index,
                num_input_tokens=len(self._request.prompt_ids),
                num_output_tokens=sequence.num_tokens,
                num_cached_tokens=self._num_cached_tokens,
                output_log_probs=tuple(report.log_prob for report in piece.reports),
                log_probs_content=content_json(piece.reports, self._tokenizer) if self._params.return_log_probs else "",
                path=self._decision.path,
                engine=self._decision.engine,
                decision=self._decision_line,
                decision_record=self._record,
            )
        )
        self._record = ""
