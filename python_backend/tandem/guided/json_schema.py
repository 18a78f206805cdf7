"""A JSON Schema to llguidance's grammar, with our white space: one blank behind each comma and colon, and nowhere else.

So a document has one form per value: nothing that a model could fill with blanks (an answer always ends), more tokens that are
forced, and the form most training text has.
"""

from __future__ import annotations

from typing import Any

import orjson
from llguidance import LLMatcher

from tandem.guided.errors import GuideError
from tandem.guided.json_text import parse_json
from tandem.guided.limits import GuideLimits
from tandem.guided.schema_values import check_branches, check_finite
from tandem.guided.schema_walk import SchemaWalk

ANY_VALUE = "{}"
INLINE_OPTIONS: Any = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "lenient": False,
    # One spelling per character. With \u0061 a declared key "a" could come again, as an undeclared one of any type.
    "json_allowed_escapes": 'bfnrt"\\',
}


def check_schema(text: str, limits: GuideLimits, *, path: str = "$") -> SchemaWalk:
    """Everything short of compiling it; ``path``: where the schema stands. Raises: GuideError, UnsupportedGuide."""
    value = parse_json(text, limits)
    walk = SchemaWalk(value, limits, path)
    check_branches(walk, limits)
    check_finite(walk)
    return walk


def schema_grammar(text: str) -> str:
    """The grammar of a checked schema. Raises: GuideError for what the compiler's reader refuses (a number beyond its range)."""
    # false is refused as having no value; true is any value.
    source = ANY_VALUE if text.strip() == "true" else text
    try:
        return LLMatcher.grammar_from_json_schema(source, overrides=INLINE_OPTIONS)
    except ValueError as error:
        raise GuideError("$", "the schema", f"it cannot be read ({error})") from None


def schema_text(value: Any) -> str:
    return orjson.dumps(value).decode()
