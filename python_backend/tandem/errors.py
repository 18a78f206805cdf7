"""The exception tree of Tandem and its one wire form.

::

    TandemError
    ├── InvalidRequest            the caller can mend it            INVALID_ARG   400
    │   ├── ContextLengthExceeded prompt longer than the context    INVALID_ARG   400
    │   └── ModelNotFound         no such model or path             NOT_FOUND     404
    ├── Unsupported               known, but not offered here       UNSUPPORTED   400
    ├── Overloaded                queue full, draining              UNAVAILABLE   503
    ├── Cancelled                 stopped by its caller             CANCELLED     499
    ├── DeadlineExceeded          its time budget is used up        UNAVAILABLE   504
    ├── EngineFailure             a model or kernel broke           INTERNAL      500
    └── SetupError                a machine or a file is not right  (exit code 2 with one sentence)

Triton carries an error as a code and one line of text. :func:`to_wire` puts our code and the field into that line and
:func:`from_wire` reads them back, so that the gateway can name the field without parsing prose.
"""

from __future__ import annotations

import re
from typing import ClassVar

_MAX_VALUE_CHARS = 80
_WIRE = re.compile(r"\[tandem:(?P<code>[a-z_]+)(?::(?P<field>[A-Za-z0-9_.\[\]-]+))?\] (?P<message>.*)", re.DOTALL)


def quote(value: object) -> str:
    """The value as a caller recognises it, shortened so that it can stand in one line of a message or log."""
    text = value if isinstance(value, str) else repr(value)
    text = "".join(ch if ch.isprintable() else " " for ch in text)
    return text if len(text) <= _MAX_VALUE_CHARS else text[: _MAX_VALUE_CHARS - 1] + "…"


class TandemError(Exception):
    """Base of everything Tandem raises on purpose. ``message`` is one sentence for the caller."""

    code: ClassVar[str] = "internal_error"
    triton_code: ClassVar[str] = "INTERNAL"
    http_status: ClassVar[int] = 500
    is_retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class InvalidRequest(TandemError):
    """A field of the request is wrong. Names the field, the value given and the remedy."""

    code = "invalid_value"
    triton_code = "INVALID_ARG"
    http_status = 400

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field}: got {quote(value)}; {remedy}", field=field)


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"

    def __init__(self, field: str, num_prompt_tokens: int, max_tokens: int, *, is_lower_bound: bool = False) -> None:
        super().__init__(
            field,
            f"{'more than ' if is_lower_bound else ''}{num_prompt_tokens} prompt tokens",
            f"the context holds {max_tokens} tokens with at least one left for the answer; shorten the prompt",
        )


class ModelNotFound(InvalidRequest):
    code = "model_not_found"
    triton_code = "NOT_FOUND"
    http_status = 404


class Unsupported(InvalidRequest):
    code = "unsupported"
    triton_code = "UNSUPPORTED"
    http_status = 400


class Overloaded(TandemError):
    code = "overloaded"
    triton_code = "UNAVAILABLE"
    http_status = 503
    is_retryable = True


class Cancelled(TandemError):
    code = "cancelled"
    triton_code = "CANCELLED"
    http_status = 499


class DeadlineExceeded(TandemError):
    code = "deadline_exceeded"
    triton_code = "UNAVAILABLE"
    http_status = 504


class EngineFailure(TandemError):
    code = "engine_failure"
    is_retryable = True


class SetupError(TandemError):
    """Something outside the program must be mended first; the message is one sentence with the remedy."""

    code = "setup_error"


class WireError(TandemError):
    """An error read back from Triton's text; behaves like the class its code names."""

    def __init__(
        self, message: str, *, code: str, field: str | None, triton_code: str, http_status: int, is_retryable: bool
    ) -> None:
        super().__init__(message, field=field)
        self.code = code  # type: ignore[misc]
        self.triton_code = triton_code  # type: ignore[misc]
        self.http_status = http_status  # type: ignore[misc]
        self.is_retryable = is_retryable  # type: ignore[misc]


def to_wire(error: TandemError) -> str:
    """One line for a Triton error: ``[tandem:code:field] sentence``."""
    field = f":{error.field}" if error.field and re.fullmatch(r"[A-Za-z0-9_.\[\]-]+", error.field) else ""
    return f"[tandem:{error.code}{field}] {error.message}"


def from_wire(text: str) -> TandemError | None:
    """The error inside a Triton message (which may carry a prefix such as ``in ensemble 'tandem', ``), or None."""
    match = _WIRE.search(text)
    if match is None:
        return None
    known = _BY_CODE.get(match["code"])
    if known is None:
        return None
    return WireError(
        match["message"],
        code=known.code,
        field=match["field"],
        triton_code=known.triton_code,
        http_status=known.http_status,
        is_retryable=known.is_retryable,
    )


_BY_CODE: dict[str, type[TandemError]] = {
    cls.code: cls
    for cls in (
        TandemError,
        InvalidRequest,
        ContextLengthExceeded,
        ModelNotFound,
        Unsupported,
        Overloaded,
        Cancelled,
        DeadlineExceeded,
        EngineFailure,
        SetupError,
    )
}
