"""What happens to every HTTP request: an id, a key check, a record, one log line, one count, no exception that gets out."""

from __future__ import annotations

import logging
import re
import uuid
from typing import Any

import orjson
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandem.errors import EngineFailure, TandemError
from tandem_gateway.errors import NotAuthenticated, error_body, error_headers
from tandem_gateway.keys import is_known_key, tenant_of
from tandem_gateway.metrics import GatewayMetrics
from tandem_gateway.record import RequestRecord

access_log = logging.getLogger("tandem_gateway.access")
_log = logging.getLogger(__name__)

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
# Needs a key when keys are set; health, readiness and metrics do not, because probes and scrapers have none.
_GUARDED_PREFIX = "/v1/"


class Edge:
    """ASGI middleware; outside all routes."""

    def __init__(self, app: ASGIApp, *, metrics: GatewayMetrics, api_keys: tuple[str, ...]) -> None:
        self._app = app
        self._metrics = metrics
        self._api_keys = api_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        record = RequestRecord(request_id=_request_id(headers.get("x-request-id")), method=scope["method"])
        scope["tandem.record"] = record

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                out = MutableHeaders(scope=message)
                out["x-request-id"] = record.request_id
                out["openai-processing-ms"] = str(round(record.elapsed_s * 1000))
            await send(message)

        try:
            if scope["path"].startswith(_GUARDED_PREFIX):
                record.tenant = tenant_of(self._check_key(headers.get("authorization")))
            await self._app(scope, receive, send_with_headers)
        except TandemError as error:
            record.error = error
            await send_error(send_with_headers, error)
        except Exception:
            _log.exception("request %s failed unexpectedly", record.request_id)
            record.error = EngineFailure("the server failed unexpectedly; try again")
            if record.status == 0:
                await send_error(send_with_headers, record.error)
        finally:
            self._finish(record, scope)

    def _check_key(self, authorization: str | None) -> str | None:
        """The authenticated key; None where no keys are set, whatever the caller sent. Raises: NotAuthenticated."""
        if not self._api_keys:
            return None
        scheme, _, key = (authorization or "").partition(" ")
        is_known = is_known_key(key.strip(), self._api_keys)
        if scheme.lower() != "bearer" or not is_known:
            raise NotAuthenticated
        return key.strip()

    def _finish(self, record: RequestRecord, scope: Scope) -> None:
        route = scope.get("route")
        record.route = getattr(route, "path", record.route)
        if record.operation:
            self._metrics.count(record)
        # Probes and scrapers come every few seconds and say nothing new.
        is_api = scope["path"].startswith(_GUARDED_PREFIX)
        access_log.log(logging.INFO if is_api or record.route == "unmatched" else logging.DEBUG, _log_line(record))


async def send_error(send: Send, error: TandemError) -> None:
    """A whole error response."""
    content = orjson.dumps(error_body(error))
    headers = [("content-type", "application/json"), ("content-length", str(len(content))), *error_headers(error)]
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    await send({"type": "http.response.start", "status": error.http_status, "headers": raw})
    await send({"type": "http.response.body", "body": content})


def _request_id(given: str | None) -> str:
    """The caller's id when it is short and plain, else a new one: it goes into headers and log lines."""
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return f"req-{uuid.uuid4().hex}"


def _log_line(record: RequestRecord) -> str:
    """One line of ``key=value``; the route instead of the address, so that nothing a caller wrote is in it but a checked id."""
    fields: dict[str, Any] = {
        "request_id": record.request_id,
        "method": record.method,
        "route": record.route,
        "status": record.status,
        "outcome": record.outcome.value,
        "code": record.error.code if record.error else None,
        "completion_id": record.completion_id or None,
        "model": record.asked_model or None,
        "path": record.path or None,
        "engine": record.engine or None,
        "prompt_tokens": record.prompt_tokens or None,
        "cached_tokens": record.cached_tokens or None,
        "completion_tokens": record.completion_tokens or None,
        "ttft_ms": None if record.ttft_s is None else round(record.ttft_s * 1000, 1),
        "duration_ms": round(record.elapsed_s * 1000, 1),
    }
    return " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
