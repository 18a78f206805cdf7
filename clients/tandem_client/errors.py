"""What can go wrong for a caller of the client.

::

    ClientError
    ├── ConnectionFailed   no answer: not reachable, time-out, connection lost
    └── ApiError           the server answered with an error (status, code, field)
"""

from __future__ import annotations

from tandem.errors import TandemError


class ClientError(Exception):
    """``partial_text`` is what had arrived of the first choice before it went wrong."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.partial_text = ""


class ConnectionFailed(ClientError):
    """The server could not be reached or the connection was lost."""


class ApiError(ClientError):
    """``status`` is the HTTP status (or what it would be over gRPC), ``field`` the request field at fault, where there is one."""

    def __init__(self, message: str, *, status: int, code: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.field = field

    @property
    def is_retryable(self) -> bool:
        """True when the same request may succeed a little later."""
        return self.status in (408, 429, 500, 502, 503)


def api_error(error: TandemError) -> ApiError:
    """An error of the gRPC side in the client's form."""
    return ApiError(error.message, status=error.http_status, code=error.code, field=error.field)
