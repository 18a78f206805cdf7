"""What is known of one HTTP request; filled while it runs, read once at its end by the log and the metrics."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum

from tandem.errors import TandemError


class Outcome(str, Enum):
    """How a request ended; every request has exactly one. rejected: refused before any work (4xx, full, draining)."""

    OK = "ok"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


@dataclass(slots=True)
class RequestRecord:
    """Times are of ``time.perf_counter``. ``operation`` is empty for routes that generate nothing."""

    request_id: str
    method: str
    route: str = "unmatched"
    started_s: float = field(default_factory=time.perf_counter)
    operation: str = ""
    completion_id: str = ""
    asked_model: str = ""
    path: str = ""
    engine: str = ""
    first_content_s: float | None = None
    tenant: str = ""  # whose cached prompts it may use; of tandem_gateway.keys
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    status: int = 0
    is_stream: bool = False
    is_generating: bool = False  # the backend has begun to answer
    error: TandemError | None = None

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.started_s

    @property
    def ttft_s(self) -> float | None:
        """Request start to first non-empty content."""
        return None if self.first_content_s is None else self.first_content_s - self.started_s

    def note_content(self) -> None:
        """Call when there is text to show."""
        if self.first_content_s is None:
            self.first_content_s = time.perf_counter()

    @property
    def outcome(self) -> Outcome:
        if self.error is None:
            return Outcome.OK if self.status < 400 else Outcome.REJECTED if self.status < 500 else Outcome.FAILED
        if self.error.code == "cancelled":
            return Outcome.CANCELLED
        if self.error.http_status < 500 or (self.error.code == "overloaded" and not self.is_generating):
            return Outcome.REJECTED
        return Outcome.FAILED
