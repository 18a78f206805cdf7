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

from tandem.errors import SetupError

_HYPHENS = ("-", "_", "‐", "‑", "–", "—")
# Only ASCII letters and digits make a word longer, so that "请translate一下" holds the word "translate".
_WORD = re.compile(r"[a-z0-9]+")
_CLAIM_NOUNS = ("model", "path", "engine", "route", "lane", "模型", "路径", "通道", "引擎", "路线")
_CLAIM = re.compile(
    r"\b(?:rout(?:e|ed|ing)|send|sent|forward(?:ed)?|switch|escalate|assign|dispatch|direct|us(?:e|ing)|go(?:es)?|take|pick"
    r"|choose|prefer|run|want|needs?|requires?|deserves?|via|through)\b[^.!?\n]{0,60}?"
    r"\b(?:slow|slower|fast|faster|quick|big|bigger|large|larger|small|smaller|strong|stronger|weak|weaker|reasoning|best)"
    r" (?:\w{1,20} )?(?:model|path|engine|route|lane)s?\b"
    r"|(?:使用|用|走|交给|转到|转给|切换到|切到|路由到|发给|发送到|选择|选)[^。!?\n]{0,20}?"
    r"(?:慢速?|快速?|大|小|强|弱|推理)(?:的)?(?:模型|路径|通道|引擎|路线)"
)


@dataclass(frozen=True, slots=True)
class Phrases:
    """The phrases of one intent."""

    english: tuple[str, ...]
    chinese: tuple[str, ...]


class Lexicon:
    """Finds the leading intent of a text. Immutable and thread-safe; linear in the length of the text."""

    def __init__(self, intents: Mapping[str, Phrases]) -> None:
        """Raises: SetupError when two intents share a phrase, or an English phrase does not start with a letter or digit."""
        self._english = _by_phrase({name: phrases.english for name, phrases in intents.items()})
        self._chinese = _by_phrase({name: phrases.chinese for name, phrases in intents.items()})
        self._chinese_search = re.compile("|".join(map(re.escape, _longest_first(self._chinese))) or r"(?!)")
        self._by_first_word: dict[str, list[str]] = {}
        for phrase in _longest_first(self._english):
            first_word = _WORD.match(phrase)
            if first_word is None:
                raise SetupError(f"the English phrase {phrase!r} must start with a letter or digit; change it in the rules file")
            self._by_first_word.setdefault(first_word[0], []).append(phrase)

    def leading_intent(self, text: str) -> str | None:
        """The intent whose phrase stands first in ``text``; of two at one place the longer phrase; None without any."""
        normal = without_claims(normalize(text))
        english = self._first_english(normal)
        chinese = None if normal.isascii() else self._chinese_search.search(normal)
        if chinese is not None and (english is None or chinese.start() < english[0]):
            return self._chinese[chinese[0]]
        return None if english is None else self._english[english[1]]

    def _first_english(self, normal: str) -> tuple[int, str] | None:
        """Position and phrase of the first English match."""
        for word in _WORD.finditer(normal):
            for phrase in self._by_first_word.get(word[0], ()):
                if normal.startswith(phrase, word.start()) and _ends_word(normal, word.start() + len(phrase)):
                    return word.start(), phrase
        return None


def normalize(text: str) -> str:
    """Compatibility forms folded (full width, ligatures), case folded, hyphens and runs of blanks as one blank."""
    folded = text.casefold() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    for hyphen in _HYPHENS:
        folded = folded.replace(hyphen, " ")
    return "\n".join(" ".join(line.split()) for line in folded.splitlines())


def without_claims(normal: str) -> str:
    """A normalized text without the clauses that tell the router where to go."""
    if not any(noun in normal for noun in _CLAIM_NOUNS):
        return normal
    return _CLAIM.sub(" ", normal)


def _by_phrase(intents: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, phrases in intents.items():
        for phrase in map(normalize, phrases):
            if phrase in found:
                raise SetupError(
                    f"the phrase {phrase!r} stands in {found[phrase]} and in {name}; keep one of them in the rules file"
                )
            found[phrase] = name
    return found


def _longest_first(phrases: Mapping[str, str]) -> list[str]:
    return sorted(phrases, key=lambda phrase: (-len(phrase), phrase))


def _ends_word(text: str, end: int) -> bool:
    return end == len(text) or _WORD.match(text, end) is None
