"""What the router may know of a prompt. Written by ``preprocessing``, read by ``router``; JSON on the wire between them."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

import orjson

from tandem.errors import InvalidRequest

PathChoice = Literal["auto", "fast", "slow"]
Language = Literal["en", "zh", "other"]

# An instruction stands at the start or at the end of a prompt; what lies between is material. This also bounds the cost.
HEAD_CHARS = 1000
TAIL_CHARS = 400

_MAX_TAG_CHARS = 200
_MAX_SLO_MS = 3_600_000.0
_CODE = re.compile(
    r"```|[;{]\s{0,4}$|=>|</\w{1,40}>"
    r"|^\s{0,40}(?:(?:def|class|func|fn|impl|interface|struct)\s{1,4}\w{1,80}\s{0,4}[({:<]|#include\s{0,4}[<\"])"
    r"|^\s{0,40}(?:from\s{1,4}[\w.]{1,80}\s{1,4}import\b|import\s{1,4}[\w.]{1,80}\s{0,4}(?:;|$|as\b))"
    r"|\bSELECT\b.{1,200}\bFROM\b",
    re.MULTILINE,
)
# Two numbers with a sign between them. Minus and slash need blanks around them, or dates and ranges would count.
_ARITHMETIC = re.compile(r"\d\s{0,3}[+*×÷^%]\s{0,3}\(?\d|\d\s{1,3}[-–/]\s{1,3}\(?\d|\d\s{0,3}=\s{0,3}\?")
_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]")
_LATIN = re.compile(r"[A-Za-z]")


@dataclass(frozen=True, slots=True)
class RouteFeatures:
    """The prompt as rules and classifiers see it. ``text`` is head and tail of the last user message.

    ``threshold``, ``slo_ttft_ms`` and ``slo_tpot_ms`` are the request's own, None for the router's. ``session``: the caller's name
    of the conversation, empty for none. ``is_tool_result``: the last message is the result of a tool.
    """

    text: str
    num_prompt_tokens: int
    num_turns: int
    path: PathChoice = "auto"
    task: str = ""
    api_path: str = ""
    source: str = ""
    has_code: bool = False
    has_arithmetic: bool = False
    language: Language = "other"
    threshold: float | None = None
    slo_ttft_ms: float | None = None
    slo_tpot_ms: float | None = None
    session: str = ""
    is_tool_result: bool = False

    def to_json(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def from_json(cls, text: str) -> RouteFeatures:
        """Raises: InvalidRequest naming ``route_features`` when this is not what :meth:`to_json` writes."""
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise InvalidRequest("route_features", text, f"give the JSON that preprocessing writes ({error})") from None
        names = {field.name for field in fields(cls)}
        if not isinstance(value, dict) or set(value) != names:
            raise InvalidRequest("route_features", text, f"give an object with exactly {', '.join(sorted(names))}")
        _check_types(value)
        return cls(**value)


def extract_features(
    text: str,
    *,
    num_prompt_tokens: int,
    num_turns: int,
    path: str = "auto",
    task: str = "",
    api_path: str = "",
    source: str = "",
    threshold: float | None = None,
    slo_ttft_ms: float | None = None,
    slo_tpot_ms: float | None = None,
    session: str = "",
    is_tool_result: bool = False,
) -> RouteFeatures:
    """Features of a prompt whose last user text is ``text``. Bounded work whatever its length.

    Raises: InvalidRequest for an unknown ``path``, an overlong tag or a number out of its range.
    """
    if path not in get_args(PathChoice):
        raise InvalidRequest("path", path, "use auto, fast or slow")
    for name, tag in (("task", task), ("api_path", api_path), ("source", source), ("session", session)):
        if len(tag) > _MAX_TAG_CHARS:
            raise InvalidRequest(name, tag, f"give at most {_MAX_TAG_CHARS} characters")
    if threshold is not None and not (math.isfinite(threshold) and 0.0 <= threshold <= 1.0):
        raise InvalidRequest("threshold", threshold, "give a number from 0 to 1")
    for name, slo_ms in (("slo_ttft_ms", slo_ttft_ms), ("slo_tpot_ms", slo_tpot_ms)):
        if slo_ms is not None and not (math.isfinite(slo_ms) and 0.0 < slo_ms <= _MAX_SLO_MS):
            raise InvalidRequest(name, slo_ms, f"give a number of milliseconds above 0, to {_MAX_SLO_MS:g}")
    excerpt = _excerpt(text)
    return RouteFeatures(
        text=excerpt,
        num_prompt_tokens=num_prompt_tokens,
        num_turns=num_turns,
        path=path,  # type: ignore[arg-type]  # checked above
        task=task,
        api_path=api_path,
        source=source,
        has_code=_CODE.search(excerpt) is not None,
        has_arithmetic=_ARITHMETIC.search(excerpt) is not None,
        language=_language(excerpt),
        # Numbers travel in 32 bits; 0.42 must come out as 0.42.
        threshold=None if threshold is None else round(threshold, 6),
        slo_ttft_ms=slo_ttft_ms,
        slo_tpot_ms=slo_tpot_ms,
        session=session,
        is_tool_result=is_tool_result,
    )


def _excerpt(text: str) -> str:
    if len(text) <= HEAD_CHARS + TAIL_CHARS:
        return text
    return f"{text[:HEAD_CHARS]}\n{text[-TAIL_CHARS:]}"


def _language(text: str) -> Language:
    """Chinese as soon as a quarter of its letters are Han: Chinese prompts often hold English names."""
    num_han, num_latin = len(_HAN.findall(text)), len(_LATIN.findall(text))
    if num_han and 3 * num_han >= num_latin:
        return "zh"
    return "en" if num_latin and text.isascii() else "other"


def _check_types(value: dict[str, Any]) -> None:
    texts = ("text", "path", "task", "api_path", "source", "language", "session")
    counts = ("num_prompt_tokens", "num_turns")
    flags = ("has_code", "has_arithmetic", "is_tool_result")
    numbers = ("threshold", "slo_ttft_ms", "slo_tpot_ms")
    faulty = [name for name in texts if not isinstance(value[name], str)]
    faulty += [name for name in counts if type(value[name]) is not int or value[name] < 0]
    faulty += [name for name in flags if not isinstance(value[name], bool)]
    faulty += [name for name in numbers if not (value[name] is None or type(value[name]) in (int, float))]
    faulty += [name for name, kind in (("path", PathChoice), ("language", Language)) if value[name] not in get_args(kind)]
    if faulty:
        raise InvalidRequest("route_features", value[faulty[0]], f"{faulty[0]} has a wrong type or value")
