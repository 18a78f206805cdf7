"""Free text with structured parts: what ``tool_choice: auto`` needs, in the form of xgrammar's and TensorRT-LLM's structural tags.

::

    {"structures": [{"begin": "<tool_call>", "schema": {...}, "end": "</tool_call>"}], "triggers": ["<tool_call>"]}

The text is free until a trigger appears; from there on it is one of the structures that begin with the trigger, then free again.
Two options of xgrammar's later form are taken as well: ``at_least_one`` (a structure must come) and ``stop_after_first`` (nothing
follows it).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from tandem.guided.ebnf_grammar import as_pattern
from tandem.guided.errors import GuideError
from tandem.guided.json_schema import INLINE_OPTIONS, check_schema, schema_text
from tandem.guided.json_text import parse_json
from tandem.guided.limits import GuideLimits

_MAX_STRUCTURES = 64
_KEYS = {"type", "structures", "triggers", "at_least_one", "stop_after_first"}
_FREE_TEXT = "/(?s:.*)/"


@dataclass(frozen=True, slots=True)
class Structure:
    begin: str
    schema: Any
    end: str


@dataclass(frozen=True, slots=True)
class StructuralTag:
    structures: tuple[Structure, ...]
    triggers: tuple[str, ...]
    at_least_one: bool = False
    stop_after_first: bool = False


def parse_structural_tag(text: str, limits: GuideLimits) -> StructuralTag:
    """Raises: GuideError with the JSON path."""
    value = parse_json(text, limits)
    if not isinstance(value, dict):
        raise GuideError("$", value, "give an object with structures and triggers")
    for key in value:
        if key not in _KEYS:
            raise GuideError(f"$.{key}", value[key], f"the keys of a structural tag are {', '.join(sorted(_KEYS))}")
    if value.get("type", "structural_tag") != "structural_tag":
        raise GuideError("$.type", value["type"], "give structural_tag or leave it out")
    triggers = tuple(_texts("$.triggers", value.get("triggers")))
    structures = tuple(_structures(value.get("structures"), limits))
    tag = StructuralTag(structures, triggers, _flag(value, "at_least_one"), _flag(value, "stop_after_first"))
    for index, structure in enumerate(structures):
        if len(_triggers_of(tag, structure)) != 1:
            raise GuideError(f"$.structures[{index}].begin", structure.begin, "it must begin with exactly one of the triggers")
    return tag


def structural_tag_lark(tag: StructuralTag) -> str:
    """llguidance's Lark form: a lazy terminal ends at the first trigger."""
    lines = ["%llguidance {}"]
    segments = []
    for index, trigger in enumerate(tag.triggers):
        tails = [_tail(structure, trigger) for structure in tag.structures if _triggers_of(tag, structure) == [trigger]]
        if not tails:
            continue
        segments.append(f"segment_{index}")
        lines.append(f"head_{index}[lazy]: /(?s:.*){as_pattern(trigger)}/")
        lines.append(f"segment_{index}: head_{index} ({' | '.join(tails)})")
    count = "" if tag.stop_after_first and tag.at_least_one else "?" if tag.stop_after_first else "+" if tag.at_least_one else "*"
    body = f"({' | '.join(segments)}){count}"
    if tag.stop_after_first:
        lines.append(f"start: {body}" if tag.at_least_one else f"start: ({' | '.join(segments)}) | free")
    else:
        lines.append(f"start: {body} free")
    lines.append(f"free: FREE_TEXT\nFREE_TEXT: {_FREE_TEXT}")
    return "\n".join(lines)


def _tail(structure: Structure, trigger: str) -> str:
    schema = structure.schema if isinstance(structure.schema, dict) else {}
    inline = schema_text({**schema, "x-guidance": INLINE_OPTIONS})
    begin = structure.begin[len(trigger) :]
    parts = [
        f"/{as_pattern(begin)}/" if begin else "",
        f"%json {inline}",
        f"/{as_pattern(structure.end)}/" if structure.end else "",
    ]
    return f"({' '.join(part for part in parts if part)})"


def _triggers_of(tag: StructuralTag, structure: Structure) -> list[str]:
    return [trigger for trigger in tag.triggers if structure.begin.startswith(trigger)]


def _structures(value: Any, limits: GuideLimits) -> Iterator[Structure]:
    if not isinstance(value, list) or not 1 <= len(value) <= _MAX_STRUCTURES:
        raise GuideError("$.structures", value, f"give an array of 1 to {_MAX_STRUCTURES} structures")
    for index, item in enumerate(value):
        path = f"$.structures[{index}]"
        if not isinstance(item, dict) or set(item) != {"begin", "schema", "end"}:
            raise GuideError(path, item, "give an object with begin, schema and end")
        for key in ("begin", "end"):
            _text(f"{path}.{key}", item[key], limits, is_empty_allowed=key == "end")
        check_schema(orjson.dumps(item["schema"]).decode(), limits, path=f"{path}.schema")
        yield Structure(item["begin"], item["schema"], item["end"])


def _texts(path: str, value: Any) -> Iterator[str]:
    if not isinstance(value, list) or not 1 <= len(value) <= _MAX_STRUCTURES or len(set(map(str, value))) != len(value):
        raise GuideError(path, value, f"give an array of 1 to {_MAX_STRUCTURES} different texts")
    for index, item in enumerate(value):
        _text(f"{path}[{index}]", item, GuideLimits())
        yield item


def _text(path: str, value: Any, limits: GuideLimits, *, is_empty_allowed: bool = False) -> None:
    if not isinstance(value, str) or not (value or is_empty_allowed):
        raise GuideError(path, value, "give a text")
    if len(value.encode("utf-8", "surrogatepass")) > limits.max_literal_bytes:
        raise GuideError(path, value, f"at most {limits.max_literal_bytes} bytes are taken")


def _flag(value: dict[str, Any], key: str) -> bool:
    flag = value.get(key, False)
    if not isinstance(flag, bool):
        raise GuideError(f"$.{key}", flag, "give true or false")
    return flag
