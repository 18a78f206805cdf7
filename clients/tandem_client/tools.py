"""Functions a model may call, as the text model ``tandem`` is asked for them: text for the prompt and a guide for the answer.

The text model knows no calls. How an answer holds them is decided here, and :mod:`tandem_client.tool_calls` reads it back:

=========  ==================================================================  ===========================
mode       answer                                                              guide
=========  ==================================================================  ===========================
auto       free text; from ``<tool_call>`` on a valid call, then free text     structural_tag
required   ``[{"name": "f", "arguments": {...}}, ...]``, one call or several   json_schema
named      the arguments of the one function                                   json_schema
=========  ==================================================================  ===========================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tandem_client.guide import Guide, to_json
from tandem_client.tool_calls import CALL_BEGIN, CALL_END, CallForm, ToolCallReader

MAX_PARALLEL_CALLS = 8
"""Of one answer, where calls are forced; free text ends by itself."""

Mode = Literal["auto", "required", "named"]
_FORMS: Mapping[Mode, CallForm] = {"auto": "tagged", "required": "list", "named": "arguments"}
NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function. ``parameters`` is a JSON Schema of type object; the arguments of a call are always valid under it."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """Of the arguments, which are an object in any case."""
        return {"type": "object", **(NO_ARGUMENTS if self.parameters is None else self.parameters)}

    def to_json(self) -> dict[str, Any]:
        """OpenAI's form, which chat templates expect too."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": {**function, "parameters": self.schema}}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of one request. ``callable_names``: those that may be called; in mode named exactly one."""

    tools: tuple[Tool, ...]
    mode: Mode
    callable_names: tuple[str, ...]
    is_parallel: bool = True

    @property
    def prompt_json(self) -> str:
        """The tensor ``tools``."""
        return to_json([tool.to_json() for tool in self.tools])

    @property
    def guide(self) -> Guide:
        if self.mode == "named":
            ((_, tool),) = self._callable()
            return Guide.json_schema(tool.schema)
        return self._list_guide() if self.mode == "required" else self._tagged_guide()

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Where the schemas of tools stand in the guide (JSON path, index of the tool), for who reads an error about the guide."""
        if self.mode == "named":
            return tuple(("$", index) for index, _ in self._callable())
        if self.mode == "required":
            return tuple((f"#/$defs/{_definition(index)}", index) for index, _ in self._callable())
        return tuple((f"$.structures[{place}].schema", index) for place, (index, _) in enumerate(self._callable()))

    def new_reader(self) -> ToolCallReader:
        """For one answer."""
        return ToolCallReader(_FORMS[self.mode], self.callable_names[0])

    def _callable(self) -> list[tuple[int, Tool]]:
        return [(index, tool) for index, tool in enumerate(self.tools) if tool.name in self.callable_names]

    def _tagged_guide(self) -> Guide:
        structures = [
            {"begin": f'{CALL_BEGIN}\n{{"name": "{tool.name}", "arguments": ', "schema": tool.schema, "end": f"}}\n{CALL_END}"}
            for _, tool in self._callable()
        ]
        tag: dict[str, Any] = {"structures": structures, "triggers": [CALL_BEGIN]}
        return Guide.structural_tag(tag if self.is_parallel else {**tag, "stop_after_first": True})

    def _list_guide(self) -> Guide:
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, "arguments": {"$ref": f"#/$defs/{_definition(index)}"}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for index, tool in self._callable()
        ]
        definitions = {_definition(index): _moved(tool.schema, f"#/$defs/{_definition(index)}") for index, tool in self._callable()}
        max_calls = MAX_PARALLEL_CALLS if self.is_parallel else 1
        return Guide.json_schema(
            {"type": "array", "items": {"anyOf": calls}, "minItems": 1, "maxItems": max_calls, "$defs": definitions}
        )


def _definition(index: int) -> str:
    return f"tool_{index}"


_LITERALS = frozenset({"const", "enum", "default", "examples"})
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})


def _moved(schema: Any, root: str) -> Any:
    """A schema that stands at ``root`` of a larger one: its references to itself point there. Literal values stay as they are."""
    if isinstance(schema, list):
        return [_moved(part, root) for part in schema]
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
            moved[keyword] = root + value[1:]
        elif keyword in _MAPS and isinstance(value, dict):
            moved[keyword] = {name: _moved(part, root) for name, part in value.items()}
        else:
            moved[keyword] = value if keyword in _LITERALS else _moved(value, root)
    return moved
