"""What a whole answer must match. One type for both transports; the values are those of the tensors ``guided_decoding_*``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Guide:
    """Make one with a class method. ``type`` and ``text`` are as ``tandem.protocol.GUIDE_TYPES`` tells; the server checks them."""

    type: str
    text: str

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any]) -> Guide:
        """A JSON document that is valid under ``schema``."""
        return cls("json_schema", to_json(schema))

    @classmethod
    def json_object(cls) -> Guide:
        """Any JSON object."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def regex(cls, pattern: str) -> Guide:
        """A text that the regular expression matches from its beginning to its end."""
        return cls("regex", pattern)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Guide:
        """One of ``texts``, exactly."""
        return cls("choice", to_json(list(texts)))

    @classmethod
    def grammar(cls, rules: str) -> Guide:
        """A text of an EBNF grammar (``root ::= ...``)."""
        return cls("ebnf_grammar", rules)

    @classmethod
    def structural_tag(cls, tag: Mapping[str, Any]) -> Guide:
        """Free text with structured parts: ``{"structures": [{"begin", "schema", "end"}], "triggers": [...]}``."""
        return cls("structural_tag", to_json(tag))


def to_json(value: Any) -> str:
    """Compact, with characters as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
