"""Metrics of the gateway: OpenTelemetry GenAI names and buckets, vLLM's names for the same figures, and our own.

One request is counted once, at its end, from its record. Labels come from closed sets only, never from what a caller sent.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tandem_gateway.record import Outcome, RequestRecord
from tandem_gateway.translate import MODEL_BY_PATH

_DURATION_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_TPOT_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_GEN_AI_LABELS = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "gen_ai_response_model")
_PROVIDER = "tandem"


class GatewayMetrics:
    """Owns one registry, so that several gateways can live in one process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.in_flight = Gauge("tandem_gateway_in_flight_requests", "Requests that are being answered", registry=registry)
        self.running = Gauge("vllm:num_requests_running", "The same under vLLM's name", ["model_name"], registry=registry)
        self._requests = Counter(
            "tandem_gateway_requests", "Requests by their one outcome", ["operation", "outcome"], registry=registry
        )
        self._errors = Counter("tandem_gateway_errors", "Requests that ended in an error, by its code", ["code"], registry=registry)
        self._paths = Counter(
            "tandem_gateway_path", "Answers by the path and engine that wrote them", ["path", "engine"], registry=registry
        )
        self._tokens = Counter(
            "gen_ai_client_token_usage", "Tokens of finished requests", [*_GEN_AI_LABELS, "gen_ai_token_type"], registry=registry
        )
        self._prompt_tokens = Counter("vllm:prompt_tokens", "Prompt tokens", ["model_name"], registry=registry)
        self._cached_tokens = Counter(
            "tandem_gateway_cached_prompt_tokens", "Prompt tokens that were not computed again", ["model_name"], registry=registry
        )
        self._generation_tokens = Counter("vllm:generation_tokens", "Generated tokens", ["model_name"], registry=registry)
        self._duration = _pair(
            registry, "gen_ai_server_request_duration_seconds", "vllm:e2e_request_latency_seconds", _DURATION_BUCKETS
        )
        self._ttft = _pair(registry, "gen_ai_server_time_to_first_token_seconds", "vllm:time_to_first_token_seconds", _TTFT_BUCKETS)
        self._tpot = _pair(
            registry, "gen_ai_server_time_per_output_token_seconds", "vllm:time_per_output_token_seconds", _TPOT_BUCKETS
        )

    def set_in_flight(self, count: int) -> None:
        self.in_flight.set(count)
        self.running.labels("tandem").set(count)

    def count(self, record: RequestRecord) -> None:
        """Count one finished request of a generating route. Latency is of good answers only."""
        self._requests.labels(record.operation, record.outcome.value).inc()
        if record.error is not None:
            self._errors.labels(record.error.code).inc()
        if not record.is_generating:
            return
        asked, answered = record.asked_model, MODEL_BY_PATH.get(record.path, record.asked_model)
        labels = (record.operation, _PROVIDER, asked, answered)
        self._paths.labels(record.path, record.engine).inc()
        self._tokens.labels(*labels, "input").inc(record.prompt_tokens)
        self._tokens.labels(*labels, "output").inc(record.completion_tokens)
        self._prompt_tokens.labels(answered).inc(record.prompt_tokens)
        self._cached_tokens.labels(answered).inc(record.cached_tokens)
        self._generation_tokens.labels(answered).inc(record.completion_tokens)
        if record.outcome is Outcome.OK:
            self._observe_latency(record, labels, answered)

    def _observe_latency(self, record: RequestRecord, labels: tuple[str, ...], answered: str) -> None:
        elapsed_s, ttft_s = record.elapsed_s, record.ttft_s
        _observe(self._duration, labels, answered, elapsed_s)
        if ttft_s is not None and record.is_stream:
            _observe(self._ttft, labels, answered, ttft_s)
            if record.completion_tokens > 1:
                _observe(self._tpot, labels, answered, (elapsed_s - ttft_s) / (record.completion_tokens - 1))

    def render(self) -> bytes:
        """Prometheus text form."""
        return generate_latest(self.registry)


def _pair(registry: CollectorRegistry, otel_name: str, vllm_name: str, buckets: tuple[float, ...]) -> tuple[Histogram, Histogram]:
    return (
        Histogram(otel_name, "Of good answers", _GEN_AI_LABELS, buckets=buckets, registry=registry),
        Histogram(vllm_name, "The same under vLLM's name", ["model_name"], buckets=buckets, registry=registry),
    )


def _observe(pair: tuple[Histogram, Histogram], labels: tuple[str, ...], answered: str, value_s: float) -> None:
    pair[0].labels(*labels).observe(value_s)
    pair[1].labels(answered).observe(value_s)
