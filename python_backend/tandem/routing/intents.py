"""What a prompt asks for, by the words it uses: English with word borders, Chinese as substrings.

The phrase that stands first decides, since people say what they want before they add how: "Prove this and format it as a list" asks
for a proof, "Translate this proof" for a translation. Claims about routing ("send this to the slow model") are taken out first:
where a request goes is for its fields to say, not for text that may come from anyone.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

_HYPHENS = ("-", "_", "‐", "‑", "–", "—")
# Only ASCII letters and digits make a word longer, so that "请translate一下" holds the word "translate".
_WORD = re.compile(r"[a-z0-9]+")
# A claim is a verb of sending and, in the same sentence, a path; or a field of the request spelled out as JSON.
_QUALITIES = ("slow", "fast", "quick", "big", "large", "small", "strong", "weak", "reasoning", "best")
_PLACES = ("model", "path", "engine", "route", "lane")
_QUALITIES_ZH = ("慢", "快", "大", "小", "强", "弱", "推理")
_PLACES_ZH = ("模型", "路径", "通道", "引擎", "路线")
_FIELDS = ("path", "task", "route", "source")
_CLAIM = re.compile(
    r"(?:\b(?:rout(?:e|ed|ing)|send|sent|forward(?:ed)?|switch|escalate|assign|dispatch|direct|us(?:e|ing)|go(?:es)?|take|pick"
    r"|choose|prefer|run|want|needs?|requires?|deserves?|via|through)\b"
    r"|使用|用|走|交给|转到|转给|切换到|切到|路由到|发给|发送到|选择|选)[^.!?。\n]{0,60}?"
    rf"(?:\b(?:{'|'.join(_QUALITIES)})(?:er|est)? (?:\w{{1,20}} )?(?:{'|'.join(_PLACES)})s?\b"
    rf"|(?:{'|'.join(_QUALITIES_ZH)})速?的?(?:{'|'.join(_PLACES_ZH)}))"
    rf"|[\"'](?:{'|'.join(_FIELDS)})[\"'] ?: ?[\"'][^\"'\n]{{0,40}}[\"']"
)


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

    def leading_intent(self, text: str) -> str | None:
        """The intent whose phrase stands first in ``text``; of two at one place the longer phrase; None without any."""
        normal = without_claims(normalize(text))
        found = [
            (position, -len(phrase), phrase)
            for word in self._english.keys() & set(_WORD.findall(normal))
            for phrase in self._english[word]
            if (position := _find_words(normal, phrase)) >= 0
        ]
        if not normal.isascii():
            found += [
                (position, -len(phrase), phrase)
                for char in self._chinese.keys() & set(normal)
                for phrase in self._chinese[char]
                if (position := normal.find(phrase)) >= 0
            ]
        return self._intent_of[min(found)[2]] if found else None

    def _add(self, phrase: str, name: str) -> None:
        assert self._intent_of.setdefault(phrase, name) == name, f"{phrase!r} belongs to two intents"


def normalize(text: str) -> str:
    """Compatibility forms folded (full width, ligatures), case folded, hyphens and runs of blanks as one blank."""
    folded = text.casefold() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    for hyphen in _HYPHENS:
        folded = folded.replace(hyphen, " ")
    return "\n".join(" ".join(line.split()) for line in folded.splitlines())


def without_claims(normal: str) -> str:
    """A normalized text without the words that tell the router where to go."""
    # Looking for words costs far less than the pattern, and nearly every text has no claim.
    names_path = _has_any(normal, _PLACES + _PLACES_ZH) and _has_any(normal, _QUALITIES + _QUALITIES_ZH)
    names_field = _has_any(normal, ('"', "'")) and _has_any(normal, _FIELDS)
    return _CLAIM.sub(" ", normal) if names_path or names_field else normal


def _has_any(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)


def _first_word(phrase: str) -> str:
    match = _WORD.match(phrase)
    assert match is not None, f"{phrase!r} does not start with a letter or digit"
    return match[0]


def _find_words(text: str, phrase: str) -> int:
    """Where ``phrase`` stands as whole words, or -1."""
    start = text.find(phrase)
    while start >= 0:
        end = start + len(phrase)
        if not (start and _WORD.match(text[start - 1])) and not (end < len(text) and _WORD.match(text[end])):
            return start
        start = text.find(phrase, start + 1)
    return -1
