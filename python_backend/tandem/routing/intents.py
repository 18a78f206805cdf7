"""What a prompt asks for, by the words it uses: English with word borders, Chinese as substrings.

The phrase that stands first decides, since people say what they want before they add how: "Prove this and format it as a list" asks
for a proof, "Translate this proof" for a translation. Phrases inside of claims about routing ("send this to the slow model") do not
count: where a request goes is for its fields to say, not for text that may come from anyone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tandem.routing.claims import fold, is_claim, without_claims

__all__ = ["Lexicon", "Phrases", "normalize", "without_claims"]

_HYPHENS = ("-", "_", "‐", "‑", "–", "—")
# Only ASCII letters and digits make a word longer, so that "请translate一下" holds the word "translate".
_WORD = re.compile(r"[a-z0-9]+")
_BLANKS = {code: " " for code in range(128) if not chr(code).isalnum()}
# Bounds the work on a text that holds every phrase; those that stand later decide nothing.
_MAX_CHECKED = 8


@dataclass(frozen=True, slots=True)
class Phrases:
    """The phrases of one intent."""

    english: tuple[str, ...]
    chinese: tuple[str, ...]


class Lexicon:
    """Finds the leading intent of a text. Immutable and thread-safe; bounded by the length of the text, whatever stands in it.

    Only phrases whose first word (Chinese: first character) stands in the text at all are looked for.
    """

    def __init__(self, intents: Mapping[str, Phrases]) -> None:
        """No two intents may share a phrase, and every English phrase starts with a letter or digit (the rules file is checked)."""
        self._intent_of: dict[str, str] = {}
        self._english: dict[str, list[str]] = {}
        self._chinese: dict[str, list[str]] = {}
        for name, phrases in intents.items():
            for phrase in map(normalize, phrases.english):
                self._add(phrase, name)
                self._english.setdefault(_first_word(phrase), []).append(phrase)
            for phrase in map(normalize, phrases.chinese):
                self._add(phrase, name)
                self._chinese.setdefault(phrase[:1], []).append(phrase)

    def intents(self, text: str) -> tuple[str, ...]:
        """The intents of ``text`` in the order in which their phrases first stand in it; of two at one place the longer phrase.

        Phrases inside of claims about routing do not count (:mod:`tandem.routing.claims`).
        """
        normal = normalize(text)
        found = [
            (position, -len(phrase), phrase, False)
            for word in self._english.keys() & _words(normal)
            for phrase in self._english[word]
            if (position := _find_words(normal, phrase)) >= 0
        ]
        if not normal.isascii():
            found += [
                (position, -len(phrase), phrase, True)
                for char, phrases in self._chinese.items()
                if char in normal
                for phrase in phrases
                if (position := normal.find(phrase)) >= 0
            ]
        kept: list[tuple[int, int, str]] = []
        for position, minus_length, phrase, is_chinese in sorted(found)[:_MAX_CHECKED]:
            start = _unclaimed(normal, phrase, position, is_chinese=is_chinese)
            if start is not None:
                kept.append((start, minus_length, phrase))
        return tuple(dict.fromkeys(self._intent_of[phrase] for phrase in _outermost(sorted(kept))))

    def _add(self, phrase: str, name: str) -> None:
        assert self._intent_of.setdefault(phrase, name) == name, f"{phrase!r} belongs to two intents"


def normalize(text: str) -> str:
    """Look-alikes and compatibility forms folded, case folded, hyphens and runs of blanks as one blank."""
    folded = fold(text).casefold()
    for hyphen in _HYPHENS:
        folded = folded.replace(hyphen, " ")
    return "\n".join(" ".join(line.split()) for line in folded.splitlines())


def _words(normal: str) -> set[str]:
    # Splitting costs a third of matching, and most long texts are ASCII.
    return set(normal.translate(_BLANKS).split() if normal.isascii() else _WORD.findall(normal))


def _first_word(phrase: str) -> str:
    match = _WORD.match(phrase)
    assert match is not None, f"{phrase!r} does not start with a letter or digit"
    return match[0]


def _outermost(found: list[tuple[int, int, str]]) -> Iterator[str]:
    """The phrases of (start, -length, phrase) in their order, without those that stand inside of one before."""
    covered_until = 0
    for start, minus_length, phrase in found:
        if start >= covered_until:
            yield phrase
            covered_until = start - minus_length


def _unclaimed(text: str, phrase: str, position: int, *, is_chinese: bool) -> int | None:
    """Where ``phrase`` stands outside of claims: at ``position`` or at the next place; None when it is at neither."""
    if not is_claim(text, position, position + len(phrase)):
        return position
    again = text.find(phrase, position + 1) if is_chinese else _find_words(text, phrase, position + 1)
    return again if again >= 0 and not is_claim(text, again, again + len(phrase)) else None


def _find_words(text: str, phrase: str, start: int = 0) -> int:
    """Where ``phrase`` stands as whole words from ``start`` on, or -1."""
    start = text.find(phrase, start)
    while start >= 0:
        end = start + len(phrase)
        if not (start and _WORD.match(text[start - 1])) and not (end < len(text) and _WORD.match(text[end])):
            return start
        start = text.find(phrase, start + 1)
    return -1
