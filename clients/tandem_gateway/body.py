"""From bytes on the wire to one strict JSON object: bounded in size, time and depth, no dialects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NoReturn

from tandem.errors import Cancelled, quote
from tandem_gateway.errors import HttpError

MAX_DEPTH = 32

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


async def read_body(headers: list[tuple[bytes, bytes]], receive: Receive, *, max_bytes: int, timeout_s: float) -> bytes:
    """The whole request body.

    Raises: HttpError 413 beyond ``max_bytes``, 408 after ``timeout_s``; Cancelled when the client goes away meanwhile.
    """
    announced = next((value for name, value in headers if name == b"content-length"), b"")
    try:
        return await asyncio.wait_for(_read(receive, max_bytes, int(announced) if announced.isdigit() else 0), timeout_s)
    except asyncio.TimeoutError:
        raise HttpError(
            408,
            "request_timeout",
            f"the body did not arrive within {timeout_s:g} s; send it in one go",
            headers=(("connection", "close"),),
        ) from None


async def _read(receive: Receive, max_bytes: int, announced_bytes: int) -> bytes:
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        if max(size, announced_bytes) > max_bytes:
            # The server reads on and throws away what is still to come, so that the client hears this instead of a reset.
            raise HttpError(
                413,
                "body_too_large",
                f"the body has at least {max(size, announced_bytes)} bytes; this server takes {max_bytes}: send a shorter request",
            )
        part, more = await _next_part(receive)
        size += len(part)
        parts.append(part)
    return b"".join(parts)


async def _next_part(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Cancelled("the client closed the connection while it sent its request")
    return message.get("body", b""), message.get("more_body", False)


def parse_object(body: bytes) -> dict[str, Any]:
    """The body as one JSON object.

    Refused, each with its own sentence: text that is not UTF-8 or not JSON, NaN and Infinity, numbers outside double range,
    keys given twice, nesting beyond ``MAX_DEPTH``, anything that is not an object. Raises: HttpError 400.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise _bad_json(f"the body is not valid UTF-8 (byte {error.start})") from None
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        raise _bad_json(f"the body is not valid JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except ValueError:
        # The interpreter refuses to convert integers of thousands of digits.
        raise _bad_json("the body holds a whole number with too many digits") from None
    if not isinstance(value, dict):
        raise _bad_json(f"the body is a JSON {_kind(value)}; send a JSON object")
    _check_depth(text, value)
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _bad_json(f"the key {quote(key)!r} is given twice in one object; give it once", field=quote(key))
            seen.add(key)
    return found


def _no_constant(name: str) -> NoReturn:
    raise _bad_json(f"the body is not valid JSON: {name} is no JSON number; send a finite number or leave the field out")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _bad_json(f"the number {quote(text)} is too large for a double")
    return value


def _check_depth(text: str, value: Any) -> None:
    # Fewer brackets than levels allowed: nothing to measure. This is every ordinary short request.
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for item in level for child in _children(item)]
        if not level:
            return
    raise _too_deep()


def _children(item: Any) -> list[Any]:
    values = item.values() if isinstance(item, dict) else item
    return [child for child in values if isinstance(child, (dict, list))]


def _too_deep() -> HttpError:
    return _bad_json(f"the body is nested more than {MAX_DEPTH} levels deep; flatten it")


def _bad_json(message: str, *, field: str | None = None) -> HttpError:
    return HttpError(400, "invalid_json", message, field=field)


def _kind(value: Any) -> str:
    return {list: "array", str: "string", bool: "boolean", type(None): "null"}.get(type(value), "number")
