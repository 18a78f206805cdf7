"""One generating HTTP request from body to last byte.

Nothing is sent before the backend's first chunk, so that every refusal keeps its HTTP status. After it, an error is one
``data: {"error": ...}`` event followed by a clean end of the body without ``[DONE]``; a finish reason is never made up.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from tandem.errors import Cancelled, EngineFailure, TandemError
from tandem_client.text import TextChunk
from tandem_gateway.answer import Answer, Piece
from tandem_gateway.backend import TextBackend
from tandem_gateway.body import parse_object, read_body
from tandem_gateway.decisions import DecisionStore
from tandem_gateway.errors import HttpError, error_body, error_headers
from tandem_gateway.field_names import name_as_asked
from tandem_gateway.lifecycle import Lifecycle
from tandem_gateway.record import RequestRecord
from tandem_gateway.render import Envelope, Renderer, usage_event
from tandem_gateway.run import Run
from tandem_gateway.settings import GatewaySettings
from tandem_gateway.translate import Asked

_log = logging.getLogger(__name__)

Reader = Callable[[dict[str, Any], Mapping[str, str], GatewaySettings, RequestRecord], Asked]

_DONE = b"data: [DONE]\n\n"
_PING = b": ping\n\n"
_MAX_HEADER_CHARS = 256
# A client that reads nothing for this long is treated as gone; its place is needed.
_WRITE_TIMEOUT_S = 60.0


class AnsweringResponse(Response):
    """Sends one answer; the framework calls it with the request's own ``receive`` and ``send``."""

    def __init__(
        self,
        settings: GatewaySettings,
        backend: TextBackend,
        lifecycle: Lifecycle,
        decisions: DecisionStore,
        reader: Reader,
        renderer: Renderer,
    ) -> None:
        super().__init__()
        self._settings = settings
        self._backend = backend
        self._lifecycle = lifecycle
        self._decisions = decisions
        self._reader = reader
        self._renderer = renderer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record: RequestRecord = scope["tandem.record"]
        record.operation = self._renderer.operation
        sender = _Sender(send)
        try:
            await self._answer(scope, receive, sender, record)
        except TandemError as error:
            record.error = error
            await sender.fail(error)
        except Exception:
            _log.exception("request %s failed unexpectedly", record.request_id)
            record.error = EngineFailure("the server failed unexpectedly; try again")
            await sender.fail(record.error)

    async def _answer(self, scope: Scope, receive: Receive, sender: _Sender, record: RequestRecord) -> None:
        self._lifecycle.check_open()
        asked = await self._read(scope, receive, record)
        run = Run(
            self._backend,
            asked.text,
            timeout_s=self._settings.request_timeout_s,
            ping_interval_s=self._settings.ping_interval_s if asked.is_stream else None,
        )
        with self._lifecycle.admit(run):
            async with run:
                watcher = asyncio.create_task(_fail_on_disconnect(receive, run))
                try:
                    await self._relay(run, asked, sender, record)
                except TandemError as error:
                    raise name_as_asked(error, asked.field_names) from error
                finally:
                    watcher.cancel()
                    with suppress(asyncio.CancelledError):
                        await watcher

    async def _read(self, scope: Scope, receive: Receive, record: RequestRecord) -> Asked:
        headers = Headers(scope=scope)
        kind = headers.get("content-type", "application/json").split(";")[0].strip().lower()
        if kind != "application/json":
            raise HttpError(
                415, "unsupported_media_type", f"content-type: got {kind[:80]!r}; send application/json", field="content-type"
            )
        body = await read_body(
            scope["headers"], receive, max_bytes=self._settings.max_body_bytes, timeout_s=self._settings.body_timeout_s
        )
        record.completion_id = self._renderer.id_prefix + uuid.uuid4().hex
        asked = self._reader(parse_object(body), headers, self._settings, record)
        record.asked_model = asked.model
        record.is_stream = asked.is_stream
        return asked

    async def _relay(self, run: Run, asked: Asked, sender: _Sender, record: RequestRecord) -> None:
        answer = Answer(asked.text, asked.tools)
        envelope = Envelope(
            id=record.completion_id,
            created=int(time.time()),
            asked_model=asked.model,
            system_fingerprint=self._settings.system_fingerprint,
            wants_log_probs=bool(asked.text.sampling.return_log_probs),
            wants_usage=asked.include_usage,
        )
        try:
            async with aclosing(run.batches()) as batches:
                async for batch in batches:
                    pieces, error = _add_all(answer, batch)
                    record.is_generating = record.is_generating or bool(batch)
                    if any(piece.parts for piece in pieces):
                        record.note_content()
                    if asked.is_stream and not sender.is_started and pieces:
                        await sender.start_events(_path_headers(answer))
                    if sender.is_started:
                        events = [event for piece in pieces for event in self._renderer.events(envelope, piece)]
                        await sender.events(events if batch else None)
                    if error is not None:
                        raise error
            answer.close()
        finally:
            record.path, record.engine = answer.path, answer.engine
            record.prompt_tokens, record.completion_tokens = answer.prompt_tokens, answer.completion_tokens
            record.cached_tokens = answer.cached_tokens
            self._decisions.keep(record.tenant, record.completion_id, record.request_id, answer.decision_records)
        if not asked.is_stream:
            await sender.json(200, self._renderer.body(envelope, answer), _path_headers(answer))
            return
        if asked.include_usage:
            await sender.events([usage_event(envelope, self._renderer, answer)])
        await sender.finish_events()


class _Sender:
    """ASGI messages of one response; remembers how far it has got."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_stalled = False
        self.is_started = False

    async def json(self, status: int, body: dict[str, Any], headers: list[tuple[str, str]]) -> None:
        content = orjson.dumps(body)
        await self._start(status, [("content-type", "application/json"), ("content-length", str(len(content))), *headers])
        await self._body(content, more=False)

    async def start_events(self, headers: list[tuple[str, str]]) -> None:
        # no-transform and x-accel-buffering keep proxies from collecting the stream.
        fixed = [
            ("content-type", "text/event-stream; charset=utf-8"),
            ("cache-control", "no-cache, no-transform"),
            ("x-accel-buffering", "no"),
        ]
        await self._start(200, fixed + headers)

    async def events(self, events: list[dict[str, Any]] | None) -> None:
        """One write for all; None sends a keep-alive comment."""
        if events is None:
            await self._body(_PING, more=True)
        elif events:
            await self._body(b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events), more=True)

    async def finish_events(self) -> None:
        await self._body(_DONE, more=False)

    async def fail(self, error: TandemError) -> None:
        """The error in the form that fits: a whole response, or the last event of a stream that has begun."""
        if self._is_stalled:
            return
        if not self.is_started:
            await self.json(error.http_status, error_body(error), error_headers(error))
        else:
            await self._body(b"data: " + orjson.dumps(error_body(error)) + b"\n\n", more=False)

    async def _start(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.is_started = True
        message: Message = {"type": "http.response.start", "status": status}
        message["headers"] = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._write(message)

    async def _body(self, body: bytes, *, more: bool) -> None:
        await self._write({"type": "http.response.body", "body": body, "more_body": more})

    async def _write(self, message: Message) -> None:
        try:
            await asyncio.wait_for(self._send(message), _WRITE_TIMEOUT_S)
        except asyncio.TimeoutError:
            self._is_stalled = True
            raise Cancelled(f"the client read nothing for {_WRITE_TIMEOUT_S:g} s") from None


def _add_all(answer: Answer, batch: list[TextChunk]) -> tuple[list[Piece], TandemError | None]:
    """The pieces of the chunks up to the first that breaks the contract, and its error: what was good is still shown."""
    pieces: list[Piece] = []
    try:
        pieces.extend(answer.add(chunk) for chunk in batch)
    except TandemError as error:
        return pieces, error
    return pieces, None


async def _fail_on_disconnect(receive: Receive, run: Run) -> None:
    # The body has been read: the next message that is not part of it says that the client is gone.
    while (await receive())["type"] != "http.disconnect":
        pass
    run.fail(Cancelled("the client closed the connection"))


def _path_headers(answer: Answer) -> list[tuple[str, str]]:
    return [
        ("x-tandem-path", _header_text(answer.path)),
        ("x-tandem-engine", _header_text(answer.engine)),
        ("x-tandem-decision", _header_text(answer.decision)),
    ]


def _header_text(text: str) -> str:
    """Printable ASCII in one line: a decision may quote words of the lexicon that no header can carry."""
    return "".join(ch if " " <= ch <= "~" else "?" for ch in text)[:_MAX_HEADER_CHARS]
