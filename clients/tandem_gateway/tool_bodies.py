"""The bodies about tools, as pydantic sees them. What they mean: :mod:`tandem_gateway.tool_use`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from tandem_gateway.strict import NonEmpty, Strict, Text, ToolName

MAX_TOOLS = 64


class Function(Strict):
    """``strict`` changes nothing: arguments are always valid under ``parameters``."""

    name: ToolName
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Strict):
    type: Literal["function"]
    function: Function


class FunctionName(Strict):
    name: ToolName


class NamedTool(Strict):
    """The choice of one function; also an entry of :class:`AllowedTools`."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(Strict):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1)]


class AllowedToolsChoice(Strict):
    """All tools are shown to the model, some may be called."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedToolsChoice


class MadeFunction(Strict):
    name: NonEmpty
    arguments: Text


class MadeCall(Strict):
    """A call of an earlier answer that comes back in a message."""

    id: NonEmpty
    type: Literal["function"] = "function"
    function: MadeFunction
