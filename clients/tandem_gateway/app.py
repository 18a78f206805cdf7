"""The application: routes and how the parts are put together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import orjson
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tandem.errors import EngineFailure, ModelNotFound, TandemError
from tandem_client.model_names import HINT, MODELS
from tandem_gateway.answering import AnsweringResponse
from tandem_gateway.backend import TextBackend
from tandem_gateway.decisions import DecisionStore
from tandem_gateway.edge import Edge
from tandem_gateway.errors import HttpError, error_body, error_headers
from tandem_gateway.lifecycle import Lifecycle, Status
from tandem_gateway.metrics import GatewayMetrics
from tandem_gateway.record import RequestRecord
from tandem_gateway.render import ChatRenderer, CompletionRenderer
from tandem_gateway.settings import GatewaySettings
from tandem_gateway.translate import CHAT_PATH, COMPLETION_PATH, read_chat, read_completion


def create_app(settings: GatewaySettings, backend: TextBackend) -> FastAPI:
    """A gateway over ``backend``; ``app.state.lifecycle`` is its :class:`Lifecycle`. The app closes the backend when it stops."""
    metrics, decisions = GatewayMetrics(), DecisionStore()
    lifecycle = Lifecycle(settings, backend, metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        watcher = asyncio.create_task(lifecycle.watch())
        try:
            yield
        finally:
            watcher.cancel()
            with suppress(asyncio.CancelledError):
                await watcher
            await backend.close()

    # No generated documentation pages: they load scripts from elsewhere. docs/api.md is the reference.
    app = FastAPI(title="Tandem", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.lifecycle = lifecycle
    app.add_middleware(Edge, metrics=metrics, api_keys=settings.api_keys)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(TandemError, _tandem_error)
    for path, reader, renderer in (
        (CHAT_PATH, read_chat, ChatRenderer()),
        (COMPLETION_PATH, read_completion, CompletionRenderer()),
    ):
        answer = partial(AnsweringResponse, settings, backend, lifecycle, decisions, reader, renderer)
        _add_generation(app, path, answer)
    _add_decisions(app, decisions)
    _add_models(app)
    _add_operations(app, backend, lifecycle, metrics)
    return app


def _add_generation(app: FastAPI, path: str, answer: Callable[[], Response]) -> None:
    async def generate(request: Request) -> Response:
        return answer()

    app.add_api_route(path, generate, methods=["POST"], response_model=None)


def _add_decisions(app: FastAPI, decisions: DecisionStore) -> None:
    async def show_decision(request: Request, name: str) -> Response:
        record: RequestRecord = request.scope["tandem.record"]
        found = decisions.find(record.tenant, name)
        if found is None:
            raise HttpError(404, "not_found", "no decision is kept under this id; only those of the last requests are")
        return _json({"id": name, "object": "tandem.decisions", "records": [orjson.loads(text) for text in found]})

    app.add_api_route("/v1/decisions/{name}", show_decision, methods=["GET"], response_model=None)


def _add_models(app: FastAPI) -> None:
    created = int(time.time())
    models = {name: {"id": name, "object": "model", "created": created, "owned_by": "tandem"} for name in MODELS}

    async def list_models() -> Response:
        return _json({"object": "list", "data": list(models.values())})

    async def get_model(model_id: str) -> Response:
        if model_id not in models:
            raise ModelNotFound("model", model_id, HINT)
        return _json(models[model_id])

    app.add_api_route("/v1/models", list_models, methods=["GET"], response_model=None)
    app.add_api_route("/v1/models/{model_id:path}", get_model, methods=["GET"], response_model=None)


def _add_operations(app: FastAPI, backend: TextBackend, lifecycle: Lifecycle, metrics: GatewayMetrics) -> None:
    async def live() -> Response:
        return _json({"status": "live"})

    async def ready() -> Response:
        is_ready = lifecycle.status is Status.READY
        body = {
            "status": lifecycle.status.value,
            "in_flight": lifecycle.num_in_flight,
            "backend": {"live": lifecycle.health.is_live, "parts": lifecycle.health.parts},
        }
        return _json(body, status=200 if is_ready else 503)

    async def show_metrics() -> Response:
        own = metrics.render()
        try:
            theirs = await backend.metrics_text()
        except EngineFailure as error:
            theirs = f"# the backend's metrics are missing: {error.message}\n"
        return Response(own + theirs.encode(), media_type="text/plain; version=0.0.4; charset=utf-8")

    app.add_api_route("/healthz", live, methods=["GET"], response_model=None)
    app.add_api_route("/readyz", ready, methods=["GET"], response_model=None)
    app.add_api_route("/metrics", show_metrics, methods=["GET"], response_model=None)


async def _http_exception(request: Request, error: Exception) -> Response:
    """What the framework refuses by itself: unknown routes and methods."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        own = HttpError(404, "not_found", "there is no such route; see docs/api.md for the routes")
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        own = HttpError(
            405, "method_not_allowed", f"the route does not take {request.method}; use {allowed}", headers=(("allow", allowed),)
        )
    else:
        own = HttpError(error.status_code, "http_error", "the request was refused")
    return await _tandem_error(request, own)


async def _tandem_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TandemError)
    record: RequestRecord = request.scope["tandem.record"]
    record.error = error
    return _json(error_body(error), status=error.http_status, headers=dict(error_headers(error)))


def _json(body: dict[str, Any], *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status_code=status, headers=headers, media_type="application/json")
