"""What stands between a request and its decision: load, session and policy in, decision and record out."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.orchestration.admission import AdmissionQueue
from tandem.orchestration.config import RouterConfig
from tandem.orchestration.engine_load import EnginePredictor, predict_all
from tandem.orchestration.port import RouterRequest
from tandem.orchestration.route_counts import RouteCounts
from tandem.orchestration.sessions import SessionStore
from tandem.routing.explain import DecisionRecord
from tandem.routing.features import RouteFeatures
from tandem.routing.policy import RoutingPolicy
from tandem.scheduling.length import RequestKind
from tandem.types import CacheHints


class Decider:
    """Decides requests and learns from how they went. Thread-safe; one for all flows of a service."""

    def __init__(self, config: RouterConfig, policy: RoutingPolicy, admission: Mapping[str, AdmissionQueue]) -> None:
        """``admission``: the queue in front of each engine, by name."""
        self.counts = RouteCounts()
        self._config = config
        self._policy = policy
        self._predictors = {
            engine.name: EnginePredictor(admission[engine.name], engine.kv_tokens)
            for engine in config.engines
            if engine.name in admission
        }
        sessions = policy.settings.sessions
        self._sessions = SessionStore(sessions.max_sessions, sessions.ttl_s)

    def decide(self, request: RouterRequest, features: RouteFeatures) -> DecisionRecord:
        session = self._sessions.find(request.cache_salt, features.session)
        cached = {session.engine: session.num_tokens} if session is not None else {}
        kind = RequestKind(features.task, request.sampling.max_tokens or self._config.default_max_tokens)
        load = predict_all(self._predictors, kind, len(request.prompt_ids), cached)
        tenant = CacheHints(request.cache_salt).tenant
        decided = self._policy.decide(features, load, session, tenant=tenant)
        record = DecisionRecord.of(decided, features, self._policy.terms, self._policy.fingerprint)
        self.counts.add(record)
        return record

    def learn_latency(self, engine: str, latency: CallLatency) -> None:
        """Take in what one streamed call of an engine took."""
        predictor = self._predictors[engine]
        if latency.ttft_ms is not None:
            predictor.learn_ttft(latency.num_computed_tokens, latency.num_in_flight, latency.ttft_ms)
        if latency.tpot_ms is not None:
            predictor.learn_tpot(latency.num_in_flight, latency.tpot_ms)

    def note_session(self, request: RouterRequest, features: RouteFeatures, engine: str, num_output_tokens: int) -> None:
        """The session of the request is on ``engine``, whose cache holds the prompt and so much of an answer."""
        self._sessions.note(request.cache_salt, features.session, engine, len(request.prompt_ids) + num_output_tokens)


class CallLatency:
    """Times of one streamed call, from its deltas. ``clock_s`` readings are handed in, so that this is plain arithmetic."""

    def __init__(self, called_s: float, num_in_flight: int, num_prompt_tokens: int) -> None:
        self.num_in_flight = num_in_flight
        self._called_s = called_s
        self._num_prompt_tokens = num_prompt_tokens
        self._num_cached_tokens = 0
        self._first_s: float | None = None
        self._last_s = called_s
        self._num_tokens = 0
        self._num_first_tokens = 0

    def note(self, now_s: float, num_tokens: int, num_cached_tokens: int) -> None:
        """A delta with ``num_tokens`` new tokens of the first sequence has come."""
        if num_tokens == 0:
            return
        if self._first_s is None:
            self._first_s, self._num_cached_tokens, self._num_first_tokens = now_s, num_cached_tokens, num_tokens
        self._last_s = now_s
        self._num_tokens += num_tokens

    @property
    def num_computed_tokens(self) -> int:
        """Of the prompt."""
        return max(self._num_prompt_tokens - self._num_cached_tokens, 1)

    @property
    def ttft_ms(self) -> float | None:
        """None before the first token."""
        return None if self._first_s is None else (self._first_s - self._called_s) * 1e3

    @property
    def tpot_ms(self) -> float | None:
        """None without tokens after the first delta."""
        num_later = self._num_tokens - self._num_first_tokens
        return None if self._first_s is None or num_later < 1 else (self._last_s - self._first_s) * 1e3 / num_later
