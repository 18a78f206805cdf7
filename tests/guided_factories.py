"""A vocabulary of 61 tokens for the tiny decoder, and grammars over it."""

from __future__ import annotations

import json
from functools import cache

from llguidance import LLTokenizer, TokenizerWrapper

from tandem.guided.compiler import GrammarCompiler
from tandem.types import Guide, GuideType

END = 60
# Single signs for every text, and longer tokens so that forced text has a canonical split that is not sign by sign.
SINGLES = list('{}[]":, 0123456789-.') + list("abcdefghijklmnopqrstuvwxyz")
LONGER = ['{"', '": ', '", "', '"}', "name", "age", "cat", "dog", "true", "false", "null", "yes", "no", '"name"']
TOKENS = [*SINGLES, *LONGER]
assert len(TOKENS) == END


class _Wrapped:
    """Greedy longest match, which is what makes a split canonical here."""

    eos_token_id = END
    bos_token_id = None
    tokens = (*(text.encode() for text in TOKENS), b"<end>")
    special_token_ids = (END,)

    def __call__(self, text: bytes | str) -> list[int]:
        return tokenize(text.decode() if isinstance(text, bytes) else text)


def tokenize(text: str) -> list[int]:
    by_length = sorted(range(len(TOKENS)), key=lambda token: -len(TOKENS[token]))
    ids: list[int] = []
    while text:
        token = next((token for token in by_length if text.startswith(TOKENS[token])), None)
        if token is None:  # a sign that this vocabulary does not have
            return ids
        ids.append(token)
        text = text[len(TOKENS[token]) :]
    return ids


def detokenize(ids: list[int]) -> str:
    return "".join(TOKENS[token] for token in ids)


@cache
def tiny_tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Wrapped()))


def make_compiler(**options) -> GrammarCompiler:
    return GrammarCompiler(tiny_tokenizer(), **options)


def schema_guide(schema: object) -> Guide:
    return Guide(GuideType.JSON_SCHEMA, json.dumps(schema))


def regex_guide(pattern: str) -> Guide:
    return Guide(GuideType.REGEX, pattern)
