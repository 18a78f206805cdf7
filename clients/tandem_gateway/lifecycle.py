"""When the gateway is ready, how many requests it takes, and how it stops.

``starting → ready ⇄ degraded → draining``: ready after a real request on every warm-up route, degraded while a part of the
backend is away (it is warmed up again when it comes back), draining for good once asked to stop.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from tandem.errors import Overloaded, TandemError
from tandem_client.text import Sampling, TextRequest
from tandem_gateway.backend import BackendHealth, TextBackend
from tandem_gateway.metrics import GatewayMetrics
from tandem_gateway.run import Run
from tandem_gateway.settings import GatewaySettings

_log = logging.getLogger(__name__)

# (path, task): together they touch every engine: fast_int4, fast_int8 (code goes there by rule) and slow.
_WARMUP_ROUTES = (("fast", None), ("auto", "code"), ("slow", None))
_WARMUP_TIMEOUT_S = 120.0


class Status(str, Enum):
    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    DRAINING = "draining"


class Lifecycle:
    """Owns the set of running requests and the state above. One event loop."""

    def __init__(self, settings: GatewaySettings, backend: TextBackend, metrics: GatewayMetrics) -> None:
        self._settings = settings
        self._backend = backend
        self._metrics = metrics
        self._runs: set[Run] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.status = Status.STARTING
        self.first_ready = asyncio.Event()
        self.health = BackendHealth(is_live=False, parts={})

    @property
    def num_in_flight(self) -> int:
        return len(self._runs)

    def check_open(self) -> None:
        """Raises: Overloaded when a new request cannot be taken now."""
        if self.status is Status.DRAINING:
            raise Overloaded("the server is shutting down; send the request to another one")
        if self.status is Status.STARTING:
            raise Overloaded("the server is still starting; try again in a moment")
        if len(self._runs) >= self._settings.max_in_flight:
            raise Overloaded(
                f"the server already answers {self._settings.max_in_flight} requests, its limit; try again in a moment"
            )

    @contextmanager
    def admit(self, run: Run) -> Iterator[None]:
        """Hold one of the places for running requests. Raises: Overloaded."""
        self.check_open()
        self._runs.add(run)
        self._changed()
        try:
            yield
        finally:
            self._runs.discard(run)
            self._changed()

    async def watch(self) -> None:
        """Keep ``status`` true until cancelled."""
        while True:
            await self.check_health()
            await asyncio.sleep(self._settings.health_interval_s)

    async def check_health(self) -> None:
        """One look at the backend, and the warm-up when it is due."""
        self.health = await self._backend.health()
        if self.status is Status.DRAINING:
            return
        if not self.health.is_ready:
            self.status = Status.STARTING if self.status is Status.STARTING else Status.DEGRADED
        elif self.status is not Status.READY and await self._warm_up():
            self._become_ready()

    def _become_ready(self) -> None:
        if self.status is Status.DRAINING:  # asked to stop during the warm-up
            return
        self.status = Status.READY
        self.first_ready.set()
        _log.info("ready")

    async def drain(self) -> None:
        """Take nothing new, let running requests finish within the grace time, then end the rest with an error of their own."""
        self.status = Status.DRAINING
        try:
            await asyncio.wait_for(self._idle.wait(), self._settings.drain_grace_s)
        except asyncio.TimeoutError:
            _log.warning("%d requests were still running at the end of the grace time", len(self._runs))
            for run in tuple(self._runs):
                run.fail(Overloaded("the server is shutting down and the answer was not complete in time; try again"))

    async def _warm_up(self) -> bool:
        if not self._settings.warmup:
            return True
        for path, task in _WARMUP_ROUTES:
            request = TextRequest(
                request_id=f"warmup-{uuid.uuid4().hex}",
                messages='[{"role":"user","content":"Hello"}]',
                path=path,
                task=task,
                stream=True,
                sampling=Sampling(max_tokens=2, temperature=0.0),
            )
            try:
                async with Run(self._backend, request, timeout_s=_WARMUP_TIMEOUT_S, ping_interval_s=None) as run:
                    async for _ in run.batches():
                        pass
            except TandemError as error:
                _log.warning("warm-up of path %s did not work yet: %s", path, error.message)
                return False
        return True

    def _changed(self) -> None:
        self._metrics.set_in_flight(len(self._runs))
        if self._runs:
            self._idle.clear()
        else:
            self._idle.set()
