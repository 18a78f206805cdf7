"""Errors as HTTP: one form for everything, ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from typing import Any, ClassVar

from tandem.errors import InvalidRequest, TandemError, quote

_TYPE_BY_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    499: "cancelled_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class HttpError(TandemError):
    """A refusal that belongs to HTTP rather than to the models."""

    def __init__(
        self, status: int, code: str, message: str, *, field: str | None = None, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(message, field=field)
        self.http_status = status  # type: ignore[misc]
        self.code = code  # type: ignore[misc]
        self.headers = headers


class NotAuthenticated(HttpError):
    """The text is the same for a missing, a malformed and a wrong key, and holds none of it."""

    message_text: ClassVar[str] = "a valid API key is needed: send it as 'Authorization: Bearer <key>'"

    def __init__(self) -> None:
        super().__init__(401, "invalid_api_key", self.message_text, headers=(("www-authenticate", "Bearer"),))


def error_body(error: TandemError) -> dict[str, Any]:
    """The OpenAI form. ``param`` is the field, where there is one; ``code`` is stable, ``message`` is for people."""
    kind = _TYPE_BY_STATUS.get(error.http_status, "server_error")
    return {"error": {"message": error.message, "type": kind, "param": error.field, "code": error.code}}


def error_headers(error: TandemError) -> list[tuple[str, str]]:
    """Extra response headers: retry-after where trying again makes sense, plus the error's own."""
    headers = list(error.headers) if isinstance(error, HttpError) else []
    if error.http_status in (429, 503):
        headers.append(("retry-after", "1"))
    return headers


def invalid(field: str, value: object, remedy: str) -> InvalidRequest:
    """A field with a wrong value; ``field`` may come from the caller and is shortened."""
    return InvalidRequest(quote(field), value, remedy)
