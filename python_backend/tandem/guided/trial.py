"""A trial compile without a model's tokenizer: over the 256 bytes as vocabulary, so that it costs no more than the grammar does."""

from __future__ import annotations

from functools import cache

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

_END = 256


class _Bytes:
    """What llguidance asks of a tokenizer: one token per byte, and an end token."""

    eos_token_id = _END
    bos_token_id = None
    tokens = (*(bytes([value]) for value in range(256)), b"<end>")
    special_token_ids = (_END,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@cache
def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes()), slices=[])


def compile_error(grammar: str, limits: LLParserLimits) -> str | None:
    """What the compiler says against a grammar, or None; "it matches nothing" when no text begins an answer."""
    matcher = LLMatcher(_byte_tokenizer(), grammar, log_level=0, limits=limits)
    if not matcher.is_error():
        mask = matcher.compute_bitmask()
        if not matcher.is_error() and (any(mask) or matcher.is_accepting()):
            return None
    message = matcher.get_error()
    return "it matches nothing" if not message or message.startswith("NoExtension") else message
