"""From the many fields that constrain an answer to the one guide of the text model. Two of them in one request are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tandem.errors import InvalidRequest
from tandem_client.guide import Guide
from tandem_client.tools import ToolUse
from tandem_gateway.formats import StructuredOutputs
from tandem_gateway.schemas import Generation


@dataclass(frozen=True, slots=True)
class AskedGuide:
    """``field`` is what the caller calls it. ``places``: JSON paths in the guide that are fields of their own."""

    field: str
    guide: Guide
    places: tuple[tuple[str, str], ...] = ()


def read_guide(body: Generation, use: ToolUse | None) -> AskedGuide | None:
    """The one thing the answer must match, or None. Raises: InvalidRequest naming both of two."""
    found = [*_of_body(body), *_of_tools(use)]
    if len(found) > 1:
        raise InvalidRequest(found[1].field, "a second constraint", f"give only one of {found[0].field} and {found[1].field}")
    return found[0] if found else None


def _of_body(body: Generation) -> Iterator[AskedGuide]:
    yield from _of_response_format(body)
    if body.structured_outputs is not None:
        yield from _of_structured_outputs(body.structured_outputs)
    if body.guided_json is not None:
        yield AskedGuide("guided_json", Guide("json_schema", _json_text("guided_json", body.guided_json)))
    if body.guided_regex is not None:
        yield AskedGuide("guided_regex", Guide.regex(body.guided_regex))
    if body.guided_choice is not None:
        yield AskedGuide("guided_choice", Guide.choice(body.guided_choice))
    if body.guided_grammar is not None:
        yield AskedGuide("guided_grammar", Guide.grammar(body.guided_grammar))


def _of_response_format(body: Generation) -> Iterator[AskedGuide]:
    given = body.response_format
    if given is None:
        return
    if (given.json_schema is not None) != (given.type == "json_schema"):
        remedy = (
            "give json_schema with name and schema" if given.json_schema is None else "give json_schema for type json_schema only"
        )
        raise InvalidRequest("response_format.json_schema", "null" if given.json_schema is None else "an object", remedy)
    if given.type == "json_object":
        yield AskedGuide("response_format", Guide.json_object())
    elif given.json_schema is not None:
        name = "response_format.json_schema.schema"
        yield AskedGuide(name, Guide("json_schema", _json_text(name, given.json_schema.schema_)))


def _of_structured_outputs(given: StructuredOutputs) -> Iterator[AskedGuide]:
    found = []
    if given.json_ is not None:
        found.append(("json", Guide("json_schema", _json_text("structured_outputs.json", given.json_))))
    if given.regex is not None:
        found.append(("regex", Guide.regex(given.regex)))
    if given.choice is not None:
        found.append(("choice", Guide.choice(given.choice)))
    if given.grammar is not None:
        found.append(("grammar", Guide.grammar(given.grammar)))
    if given.json_object:
        found.append(("json_object", Guide.json_object()))
    if given.structural_tag is not None:
        text = _json_text("structured_outputs.structural_tag", given.structural_tag)
        found.append(("structural_tag", Guide("structural_tag", text)))
    if not found:
        raise InvalidRequest(
            "structured_outputs", "no constraint", "give json, regex, choice, grammar, json_object or structural_tag"
        )
    for name, guide in found:
        yield AskedGuide(f"structured_outputs.{name}", guide)


def _of_tools(use: ToolUse | None) -> Iterator[AskedGuide]:
    if use is not None:
        places = tuple((path, f"tools[{index}].function.parameters") for path, index in use.places)
        yield AskedGuide("tools", use.guide, places)


def _json_text(name: str, value: dict[str, Any] | str) -> str:
    """A JSON object as text. Raises: InvalidRequest for a text that is none, or one that no UTF-8 holds."""
    if isinstance(value, str):
        try:
            is_object = isinstance(json.loads(value), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            raise InvalidRequest(name, value, "give a JSON object")
        return value
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(name, text, "give a text that is valid Unicode (no lone surrogates)") from None
    return text
