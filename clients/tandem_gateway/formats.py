"""The bodies that say what an answer must match, as pydantic sees them. What they mean: :mod:`tandem_gateway.guides`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from tandem_gateway.strict import NonEmpty, Strict, Text, ToolName

Schema = dict[str, Any] | NonEmpty
"""A JSON Schema, or the text of one. Its keywords are checked by the router."""


class JsonSchemaFormat(Strict):
    """``strict`` and ``description`` change nothing: the schema is always enforced."""

    name: ToolName
    # "schema" is a method of pydantic's base class.
    schema_: dict[str, Any] = Field(alias="schema")
    description: Text | None = None
    strict: bool | None = None


class ResponseFormat(Strict):
    """OpenAI's field."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(Strict):
    """vLLM's field: exactly one of the first six. Of its options only the values that change nothing are taken."""

    json_: Schema | None = Field(None, alias="json")
    regex: NonEmpty | None = None
    choice: Annotated[list[NonEmpty], Field(min_length=1)] | None = None
    grammar: NonEmpty | None = None
    json_object: bool | None = None
    structural_tag: Schema | None = None
    disable_fallback: bool | None = None  # nothing here falls back
    disable_any_whitespace: Literal[False] | None = None
    disable_additional_properties: Literal[False] | None = None
    whitespace_pattern: None = None
