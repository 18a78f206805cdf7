"""HTTP and server-sent events with httpx, towards the gateway."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator

import httpx

from tandem_client import http_wire
from tandem_client.errors import ConnectionFailed
from tandem_client.results import Call, Event

# Reading waits for the next event; the server sends a comment every 15 s while it is silent.
_TIMEOUT = httpx.Timeout(connect=5.0, read=120.0, write=30.0, pool=30.0)


class HttpTransport:
    def __init__(self, base_url: str, *, api_key: str | None = None, timeout: httpx.Timeout = _TIMEOUT) -> None:
        self._http = httpx.Client(base_url=base_url, headers=http_wire.headers(api_key), timeout=timeout)

    def stream(self, call: Call) -> Generator[Event, None, None]:
        try:
            with self._http.stream("POST", http_wire.route(call), json=http_wire.body(call)) as response:
                if response.status_code != 200:
                    raise http_wire.read_error(response.status_code, response.read())
                yield http_wire.read_head(response.headers)
                for line in response.iter_lines():
                    yield from http_wire.read_line(line)
        except httpx.HTTPError as error:
            raise _failed(self._http.base_url, error) from error

    def models(self) -> tuple[str, ...]:
        try:
            response = self._http.get("/v1/models")
        except httpx.HTTPError as error:
            raise _failed(self._http.base_url, error) from error
        return _model_names(response)

    def close(self) -> None:
        self._http.close()


class AsyncHttpTransport:
    def __init__(self, base_url: str, *, api_key: str | None = None, timeout: httpx.Timeout = _TIMEOUT) -> None:
        self._http = httpx.AsyncClient(base_url=base_url, headers=http_wire.headers(api_key), timeout=timeout)

    async def stream(self, call: Call) -> AsyncGenerator[Event, None]:
        try:
            async with self._http.stream("POST", http_wire.route(call), json=http_wire.body(call)) as response:
                if response.status_code != 200:
                    raise http_wire.read_error(response.status_code, await response.aread())
                yield http_wire.read_head(response.headers)
                async for line in response.aiter_lines():
                    for event in http_wire.read_line(line):
                        yield event
        except httpx.HTTPError as error:
            raise _failed(self._http.base_url, error) from error

    async def models(self) -> tuple[str, ...]:
        try:
            response = await self._http.get("/v1/models")
        except httpx.HTTPError as error:
            raise _failed(self._http.base_url, error) from error
        return _model_names(response)

    async def close(self) -> None:
        await self._http.aclose()


def _failed(base_url: httpx.URL, error: httpx.HTTPError) -> ConnectionFailed:
    return ConnectionFailed(f"no answer from {base_url} ({type(error).__name__}: {error}); is the server running?")


def _model_names(response: httpx.Response) -> tuple[str, ...]:
    if response.status_code != 200:
        raise http_wire.read_error(response.status_code, response.content)
    return tuple(model["id"] for model in response.json()["data"])
