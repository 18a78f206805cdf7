"""What a request tells the router: the model's name, headers and metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tandem.errors import InvalidRequest, ModelNotFound
from tandem_client.model_names import HINT, ModelChoice, read_model

_MAX_HINT_CHARS = 128
_MILLISECONDS = re.compile(r"\d{1,7}(?:\.\d{1,3})?")


@dataclass(frozen=True, slots=True)
class RouteFields:
    """Names are those of :class:`tandem_client.text.TextRequest`; ``model`` is what the caller's name of the model stands for."""

    model: ModelChoice
    task: str | None
    source: str | None
    session: str | None
    slo_ttft_ms: float | None
    slo_tpot_ms: float | None


def read_route(model: str, headers: Mapping[str, str], metadata: Mapping[str, str]) -> RouteFields:
    """Raises: ModelNotFound; InvalidRequest naming the header or the key of the metadata."""
    choice = read_model(model)
    if choice is None:
        raise ModelNotFound("model", model, HINT)

    def hint(key: str, header: str) -> str | None:
        return _text(f"metadata.{key}", metadata.get(key)) or _text(header, headers.get(header))

    return RouteFields(
        model=choice,
        task=hint("task", "x-tandem-task"),
        source=hint("source", "x-tandem-source"),
        session=hint("session", "x-session-id"),
        slo_ttft_ms=_milliseconds("x-slo-ttft-ms", headers),
        slo_tpot_ms=_milliseconds("x-slo-tpot-ms", headers),
    )


def _text(name: str, value: str | None) -> str | None:
    if value is not None and (len(value) > _MAX_HINT_CHARS or not value.isprintable()):
        raise InvalidRequest(name, value, f"give at most {_MAX_HINT_CHARS} printable characters")
    return value or None


def _milliseconds(name: str, headers: Mapping[str, str]) -> float | None:
    text = headers.get(name)
    if text is None:
        return None
    value = float(text) if _MILLISECONDS.fullmatch(text.strip()) else 0.0
    if not 0.0 < value <= 3_600_000.0:
        raise InvalidRequest(name, text, "give a number of milliseconds above 0, to 3600000")
    return value
