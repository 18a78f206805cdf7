"""The tools of a chat request, with everything the gateway can check of them."""

from __future__ import annotations

import json

from tandem.errors import InvalidRequest
from tandem_client.tools import Mode, Tool, ToolUse
from tandem_gateway.schemas import ChatBody
from tandem_gateway.tool_bodies import AllowedToolsChoice, FunctionTool, NamedTool, ToolChoice


def read_tools(body: ChatBody) -> ToolUse | None:
    """None where no call can come: no tools, or ``tool_choice: none``. Raises: InvalidRequest naming the place."""
    tools = tuple(_tool(tool, f"tools[{index}].function") for index, tool in enumerate(body.tools or ()))
    _check_names(tools)
    choice = body.tool_choice or "auto"
    if not tools:
        if choice not in ("none", "auto"):
            raise InvalidRequest("tool_choice", _shown(choice), "give the tools as well")
        return None
    if choice == "none":
        return None
    mode, names = _read_choice(choice, tuple(tool.name for tool in tools))
    return ToolUse(tools, mode, names, is_parallel=body.parallel_tool_calls is not False)


def _read_choice(choice: ToolChoice, known: tuple[str, ...]) -> tuple[Mode, tuple[str, ...]]:
    """Mode and the names that may be called."""
    if isinstance(choice, NamedTool):
        return "named", _names("tool_choice.function.name", [choice], known)
    if isinstance(choice, AllowedToolsChoice):
        return choice.allowed_tools.mode, _names("tool_choice.allowed_tools.tools", choice.allowed_tools.tools, known)
    return "required" if choice == "required" else "auto", known


def _names(field: str, chosen: list[NamedTool], known: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(tool.function.name for tool in chosen)
    for name in names:
        if name not in known:
            raise InvalidRequest(field, name, "give the name of one of the tools")
    return names


def _tool(given: FunctionTool, field: str) -> Tool:
    parameters = given.function.parameters
    if parameters is not None:
        _check_parameters(parameters, f"{field}.parameters")
    return Tool(given.function.name, given.function.description, parameters)


def _check_parameters(parameters: dict[str, object], field: str) -> None:
    """Arguments are an object, so that is what their schema must be of."""
    kind = parameters.get("type", None if "$ref" in parameters else "object")
    if kind != "object":
        raise InvalidRequest(f"{field}.type", _shown(kind), 'give a JSON Schema with "type": "object"')
    try:
        json.dumps(parameters, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidRequest(field, "a lone surrogate", "give valid Unicode") from None


def _check_names(tools: tuple[Tool, ...]) -> None:
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            raise InvalidRequest(f"tools[{index}].function.name", tool.name, "give each function a name of its own")
        seen.add(tool.name)


def _shown(value: object) -> str:
    return json.dumps(value) if isinstance(value, (str, list, type(None))) else "an object"
