"""A guide to the text that llguidance compiles, after everything that can be checked without compiling."""

from __future__ import annotations

import re

from llguidance import LLMatcher, LLParserLimits

from tandem.errors import InvalidRequest
from tandem.guided.ebnf_grammar import ebnf_to_lark
from tandem.guided.errors import GuideError, UnsupportedGuide
from tandem.guided.json_schema import ANY_VALUE, check_schema, schema_grammar
from tandem.guided.json_text import parse_json
from tandem.guided.limits import GuideLimits
from tandem.guided.llg_errors import pattern_reason, schema_error
from tandem.guided.regex import pattern_size
from tandem.guided.schema_walk import SchemaWalk
from tandem.guided.structural_tag import parse_structural_tag, structural_tag_lark
from tandem.types import Guide, GuideType

_FUEL = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=100_000,
    verbose_errors=False,  # verbose ones quote the guide
)

# Where none of these stands, the cost of a schema is bounded by its length: nothing repeats, multiplies or refers back.
_BRIEF_BYTES = 4096
_COSTLY = (
    *('"$ref"', '"pattern', '"multipleOf"', '"format"', '"anyOf"', '"oneOf"', '"allOf"'),
    *('"x-guidance"', '"divisibleBy"', '"disallow"', '"extends"', "\\"),
)
_LONG_NUMBER = re.compile(r"[0-9]{6}")


def parser_limits() -> LLParserLimits:
    """The compiler's own bounds: on building the lexer, on one mask, on memory (1 to 2 kB per lexer state)."""
    return _FUEL


def lower(guide: Guide, limits: GuideLimits) -> Guide:
    """The guide as engines know it: a choice becomes a regex, all else stays. Raises: GuideError."""
    if guide.type is not GuideType.CHOICE:
        return guide
    return Guide(GuideType.REGEX, choice_regex(parse_json(guide.text, limits), limits))


def choice_regex(choices: object, limits: GuideLimits) -> str:
    """A regular expression that matches exactly these texts. Raises: GuideError."""
    if not isinstance(choices, list) or not choices:
        raise GuideError("$", choices, "give a JSON array with at least one text")
    if len(choices) > limits.max_literals:
        raise GuideError("$", f"{len(choices)} texts", f"at most {limits.max_literals} are taken")
    for index, choice in enumerate(choices):
        if not isinstance(choice, str) or not choice:
            raise GuideError(f"$[{index}]", choice, "give a text that is not empty")
        if len(choice.encode("utf-8", "surrogatepass")) > limits.max_literal_bytes:
            raise GuideError(f"$[{index}]", choice, f"at most {limits.max_literal_bytes} bytes are taken")
    return "|".join(re.escape(choice) for choice in choices)


class CheckedGrammar:
    """What :func:`grammar_of` returns: ``text`` for the compiler, and how to say what the compiler refuses."""

    def __init__(self, text: str, guide: Guide, limits: GuideLimits, walk: SchemaWalk | None = None) -> None:
        """``walk``: of a schema, if it has been walked."""
        self.text = text
        self._guide = guide
        self._limits = limits
        self._walk = walk

    def error(self, message: str) -> InvalidRequest:
        if self._guide.type in (GuideType.JSON, GuideType.JSON_SCHEMA):
            try:
                return schema_error(message, self._walk or check_schema(self._guide.text or ANY_VALUE, self._limits))
            except InvalidRequest as error:  # what the compiler stumbled over is wrong already in its form
                return error
        what = self._guide.text if self._guide.type is GuideType.REGEX else f"the {self._guide.type.value}"
        return UnsupportedGuide("$", what, f"it cannot be compiled: {pattern_reason(message)}")


def grammar_of(guide: Guide, limits: GuideLimits, *, is_brief: bool = False) -> CheckedGrammar:
    """Check sizes and form, and translate. ``is_brief`` spares the walk through a schema that is too small to do harm: for an
    engine, whose router has walked it; its form is then the compiler's to check. Raises: GuideError, UnsupportedGuide.
    """
    num_bytes = len(guide.text.encode("utf-8", "surrogatepass"))
    if num_bytes > limits.max_guide_bytes:
        raise GuideError("$", f"{num_bytes} bytes", f"a guide may have {limits.max_guide_bytes}")
    if guide.type is not GuideType.JSON and not guide.text.strip():
        raise GuideError("$", '""', f"the type {guide.type.value} needs a guide")
    if is_brief and guide.type is GuideType.JSON_SCHEMA and num_bytes <= _BRIEF_BYTES and not _may_cost(guide.text):
        return CheckedGrammar(schema_grammar(guide.text), guide, limits)
    return CheckedGrammar(*_TRANSLATORS[guide.type](guide, limits))


def _may_cost(text: str) -> bool:
    return any(word in text for word in _COSTLY) or _LONG_NUMBER.search(text) is not None


_Translated = tuple[str, Guide, GuideLimits, SchemaWalk | None]


def _json(guide: Guide, limits: GuideLimits) -> _Translated:
    if guide.text.strip():
        raise GuideError("$", guide.text, "the type json takes no guide; for a schema use json_schema")
    return schema_grammar(ANY_VALUE), guide, limits, None


def _json_schema(guide: Guide, limits: GuideLimits) -> _Translated:
    walk = check_schema(guide.text, limits)
    return schema_grammar(guide.text), guide, limits, walk


def _regex(guide: Guide, limits: GuideLimits) -> _Translated:
    # The whole answer is matched in any case, so anchors at the ends say nothing new; the compiler would take them as characters.
    pattern = guide.text.removeprefix("^")
    if pattern.endswith("$") and not re.search(r"(?<!\\)(?:\\\\)*\\\$$", pattern):
        pattern = pattern[:-1]
    pattern_size(pattern, "$", limits)
    return LLMatcher.grammar_from_regex(pattern), guide, limits, None


def _ebnf(guide: Guide, limits: GuideLimits) -> _Translated:
    return LLMatcher.grammar_from_lark(ebnf_to_lark(guide.text, limits)), guide, limits, None


def _structural_tag(guide: Guide, limits: GuideLimits) -> _Translated:
    lark = structural_tag_lark(parse_structural_tag(guide.text, limits))
    return LLMatcher.grammar_from_lark(lark), guide, limits, None


def _choice(guide: Guide, limits: GuideLimits) -> _Translated:
    return _regex(lower(guide, limits), limits)


_TRANSLATORS = {
    GuideType.JSON: _json,
    GuideType.JSON_SCHEMA: _json_schema,
    GuideType.REGEX: _regex,
    GuideType.EBNF_GRAMMAR: _ebnf,
    GuideType.STRUCTURAL_TAG: _structural_tag,
    GuideType.CHOICE: _choice,
}
