"""The backend in production: the ensemble ``tandem`` of a Triton server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

import httpx

from tandem.errors import EngineFailure, TandemError
from tandem.protocol import ENGINE_MODELS, PREPROCESSING_MODEL, ROUTER_MODEL, TANDEM_MODEL
from tandem_client.text import TextChunk, TextRequest
from tandem_client.triton import AsyncTriton
from tandem_gateway.backend import BackendHealth

_METRICS_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class TritonAddress:
    """Where Triton listens: ``grpc`` is host:port, ``metrics_url`` is an address or None. ``models`` must all be ready."""

    grpc: str
    metrics_url: str | None = None
    models: tuple[str, ...] = (TANDEM_MODEL, PREPROCESSING_MODEL, ROUTER_MODEL, *ENGINE_MODELS)


class TritonBackend:
    """A :class:`tandem_gateway.backend.TextBackend`."""

    def __init__(self, address: TritonAddress) -> None:
        self._address = address
        self._triton = AsyncTriton(address.grpc)
        self._http: httpx.AsyncClient | None = None

    def generate(self, request: TextRequest) -> AsyncGenerator[TextChunk, None]:
        return self._triton.generate(request)

    async def health(self) -> BackendHealth:
        try:
            return BackendHealth(is_live=True, parts=await self._triton.ready_models(self._address.models))
        except TandemError:
            return BackendHealth(is_live=False, parts=dict.fromkeys(self._address.models, False))

    async def metrics_text(self) -> str:
        if self._address.metrics_url is None:
            return ""
        if self._http is None:
            self._http = httpx.AsyncClient(timeout=_METRICS_TIMEOUT_S, trust_env=False)
        try:
            response = await self._http.get(self._address.metrics_url)
            response.raise_for_status()
        except httpx.HTTPError as error:
            raise EngineFailure(f"the metrics of the model server cannot be read ({type(error).__name__})") from error
        return response.text

    async def close(self) -> None:
        await self._triton.close()
        if self._http is not None:
            await self._http.aclose()
