"""Takes out of a prompt what it says about its own routing, so that text that may come from anyone moves no decision.

Where a request goes is for its fields to say. What a prompt claims of itself is no evidence of what it asks for: a path it wants
("send this to the slow model"), a field of the request spelled out (``"task": "proof"``), a label or a score, a role marker of some
chat template, how hard it is ("think step by step", "this is trivial"), an order to ignore the rules. Look-alike letters are folded
first, so that a claim can't hide behind them.

The look-alikes are those of Unicode's confusables (UTS #39) that stand for Latin letters in everyday fonts; compatibility forms
(full width, mathematical, ligatures) are what NFKC folds.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_IPA, _IPA_AS = "ɑɡıᴀᴄᴅᴇᴍɴᴏᴘʀᴛᴜᴠᴡᴢɪʟ", "agiacdemnoprtuvwzil"
_LATIN_LOOK_ALIKES = str.maketrans(_IPA, _IPA_AS)
_LOOK_ALIKES = str.maketrans(
    "аАеЕоОрРсСуУхХіІјЈѕЅԁһӏвВкКмМтТнНгαΑβΒεΕικΙΚοΟρΡτΤυΥχΧνΝΖΗΜ",
    "aAeEoOpPcCyYxXiIjJsSdhlbBkKmMtTnHraAbBeEikIKoOpPtTuYxXvNZHM",
) | str.maketrans(_IPA, _IPA_AS)
# Zero-width and direction marks, soft hyphens, variation selectors, and stacked accents.
_INVISIBLE_CHARS = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
)
_INVISIBLE = re.compile(f"[{_INVISIBLE_CHARS}]")
_ACCENTS = re.compile("[\u0300-\u036f\u0489]")
_LATIN = re.compile(r"[A-Za-z]")
_OTHER_ALPHABET = re.compile("[\u0370-\u03ff\u0400-\u052f]")
# What folding is about at all; most texts hold none of it.
_SUSPECT = re.compile(f"[{_INVISIBLE_CHARS}{_IPA}\u0300-\u036f\u0370-\u052f]")
_MIXED_WORD = re.compile("[A-Za-z][\u0370-\u03ff\u0400-\u052f]|[\u0370-\u03ff\u0400-\u052f][A-Za-z]")
_NEARBY_CHARS = 90

_QUALITIES = ("slow", "fast", "quick", "big", "large", "small", "strong", "weak", "reasoning", "best", "powerful", "cheap")
_PLACES = ("model", "path", "engine", "route", "lane", "tier")
_QUALITIES_ZH = ("慢", "快", "大", "小", "强", "弱", "推理")
_PLACES_ZH = ("模型", "路径", "通道", "引擎", "路线")
_FIELDS = (
    "path", "task", "route", "source", "label", "category", "class", "difficulty", "complexity", "score", "win rate", "threshold",
    "p fast", "p slow",
    "x tandem", "intent",
)  # fmt: skip
_FIELD_NAMES = "|".join(name.replace(" ", "[ _-]?") for name in _FIELDS if name != "x tandem")
_FIELDS_ZH = ("路径", "任务", "标签", "难度", "复杂度", "类别", "评分", "得分")
_VALUES = (
    r"auto|fast|slow|easy|hard|trivial|simple|complex|difficult|low|medium|high|proofs?|reasoning|planning|multi.?step|analysis"
    r"|translation|classification|extraction|formatting|rewriting|summari[sz]ation|(?:long.)?code|maths?|arithmetic|chat|tandem\S{0,20}"
    r"|\d{1,3}(?:\.\d{1,6})?"
)
_VALUES_ZH = "快|慢|简单|困难|复杂|容易|低|高|证明|推理|规划|翻译|分类|提取|改写|代码|算术|数学"
_HARDNESS = r"hard|difficult|complex|complicated|challenging|easy|simple|trivial|tricky|basic|straightforward|advanced"
_KINDS = r"question|task|problem|request|prompt|one|query|job|exercise"

# Each pattern is linear: every repetition is bounded, and what follows it can't match inside it. The words before it are those of
# which the text must have one, since looking for them costs far less than the pattern and nearly every text has none.
_VERB = (
    r"(?:\b(?:rout(?:e|ed|ing)|send|sent|forward(?:ed)?|switch|escalate|assign|dispatch|direct|us(?:e|ing)|go(?:es)?|take|pick"
    r"|choose|prefer|run|want|needs?|requires?|deserves?|via|through)\b"
    r"|使用|用|走|交给|转到|转给|切换到|切到|路由到|发给|发送到|选择|选)"
)
_PATH_CLAIM = re.compile(
    rf"{_VERB}[^.!?。\n]{{0,60}}?"
    rf"(?:\b(?:{'|'.join(_QUALITIES)})(?:er|est)?[ _-](?:\w{{1,20}}[ _-])?(?:{'|'.join(_PLACES)})s?\b"
    rf"|(?:{'|'.join(_QUALITIES_ZH)})速?的?(?:{'|'.join(_PLACES_ZH)}))|\btandem[-@](?:fast|slow|[\d.]{{1,8}})"
    r"|\b(?:rout(?:e|ed)|send|sent|escalate|switch|forward) (?:this |it )?to (?:the )?(?:slow|fast|strong|weak)(?:er|est)?\b",
    re.IGNORECASE,
)
_FIELD_CLAIM = re.compile(
    rf"[\"']?\b(?:x[ _-]tandem[ _-]\w{{1,20}}|(?:task |true |route |router )?(?:{_FIELD_NAMES}))[\"']?"
    rf" ?[:=] ?[\"']?(?:{_VALUES})\b[\"']?"
    rf"|(?:{'|'.join(_FIELDS_ZH)}) ?[:=] ?(?:{_VALUES_ZH})",
    re.IGNORECASE,
)
_ROLE = re.compile(
    r"<\|?/?(?:im_start|im_end|system|user|assistant|endoftext|eot_id|start_header_id|end_header_id)\|?>(?:system|user|assistant)?"
    r"|\[/?INST\]|<</?SYS>>|</?s>"
    r"|^(?:#{1,4} ?)?(?:system|assistant|user|human|developer|instruction|系统|用户|助手)(?: prompt)? ?:",
    re.IGNORECASE | re.MULTILINE,
)
_HARDNESS_CLAIM = re.compile(
    rf"\b(?:this|it|that|the following|what follows)(?: is|'s)(?: an?| the)?(?: \w{{1,12}}){{0,2}}? (?:{_HARDNESS})"
    rf"(?:[ -]\w{{1,14}})?(?: (?:{_KINDS})\b|(?=[.,;!:\n]|$))[.!]?"
    rf"|\b(?:an? |the )?(?:\w{{1,12}}ly )?(?:{_HARDNESS}) (?:{_KINDS})\b ?[:.!]"
    r"|\b(?:let'?s |please )?(?:think|reason|work)(?: about (?:it|this))?(?: it)?(?: this)?(?: through)?(?: very| really)?"
    r" (?:carefully|hard|deeply|thoroughly|step[ -]by[ -]step|slowly)\b[.!]?"
    r"|\bstep[ -]by[ -]step\b|\btake (?:your time|a deep breath)\b[.!]?"
    r"|\b(?:no need to|do not|don'?t|without)(?: \w{1,10})? (?:think|reason|overthink|thinking|reasoning)(?: \w{1,10})?[.!]?"
    r"|\b(?:requires?|needs?|demands?)(?: \w{1,12}){0,2} (?:reasoning|thinking|thought|analysis|deliberation|expertise)\b[.!]?"
    r"|\bany(?:one| \w{1,8}(?: \w{1,8})?) can (?:do|answer|solve) (?:this|it)\b[.!]?|\bonly (?:an?|the) \w{1,12}(?: \w{1,12})? can"
    r" (?:do|answer|solve) (?:this|it)\b[.!]?|\b(?:answer|reply|respond) (?:quickly|fast|immediately|instantly)\b[.!]?"
    r"|(?:让我们|请)?(?:一步一步|一步步|逐步)(?:地)?(?:思考|推理|来|想)?|仔细(?:地)?(?:思考|想一想|想想|想)|深入(?:地)?思考"
    r"|这(?:是)?(?:一)?(?:个|道)?(?:非常|很|极其|十分|特别)?(?:难|复杂|简单|容易|困难)的?(?:问题|题目|任务|题|请求)"
    r"|(?:这(?:个|道)?(?:问题|题目|任务|题))(?:非常|很|极其|十分|特别)(?:难|复杂|简单|容易|困难)|(?:无需|不需要|不用)(?:思考|推理|多想)"
    r"|(?:快速|立即|马上)(?:回答|作答)",
    re.IGNORECASE,
)
_ORDER = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass)\b[^.!?。\n]{0,30}?\b(?:rules?|instructions?|routing|router|classifier|thresholds?"
    r"|polic(?:y|ies)|scor(?:e|er|ing))\b[.!]?|(?:忽略|无视|忘记)[^.!?。\n]{0,12}?(?:规则|指令|指示|路由)",
    re.IGNORECASE,
)
_GUARDS: tuple[tuple[tuple[tuple[str, ...], ...], re.Pattern[str]], ...] = (
    ((("<", "[", ":"),), _ROLE),
    (((*_FIELDS, "win_rate", "win-rate", "winrate", "x-tandem", "x_tandem", *_FIELDS_ZH), ("=", ":")), _FIELD_CLAIM),
    (((*_PLACES, *_PLACES_ZH, "tandem", " to "), (*_QUALITIES, *_QUALITIES_ZH, "@")), _PATH_CLAIM),
    ((("ignore", "disregard", "forget", "override", "bypass", "忽略", "无视", "忘记"),), _ORDER),
    (
        (
            (
                *_HARDNESS.split("|"), "think", "reason", "step", "take ", "can ", "quick", "thought", "analysis", "deliberation",
                "expertise", "immediately", "instantly", "fast",
                "步", "难", "杂", "简单", "容易", "思考", "推理", "想", "快速", "立即", "马上",
            ),
        ),
        _HARDNESS_CLAIM,
    ),
)  # fmt: skip


def fold(text: str) -> str:
    """The text with compatibility forms, look-alike letters, invisible marks and stacked accents folded away.

    Letters of another alphabet become Latin ones only where Latin prevails or where a word mixes the two, which no language does:
    Russian and Greek stay what they are.
    """
    if text.isascii():
        return text
    folded = unicodedata.normalize("NFKC", text)
    if not _SUSPECT.search(folded):
        return folded
    folded = _INVISIBLE.sub("", folded)
    if _OTHER_ALPHABET.search(folded) and (_MIXED_WORD.search(folded) or _prevails_latin(folded)):
        folded = folded.translate(_LOOK_ALIKES)
    else:
        folded = folded.translate(_LATIN_LOOK_ALIKES)
    return _ACCENTS.sub("", unicodedata.normalize("NFD", folded)) if _ACCENTS.search(folded) else folded


def without_claims(text: str) -> str:
    """A folded text, in any case, without what it says about its own routing."""
    for pattern in _open_patterns(text):
        text = pattern.sub(" ", text)
    return text


def neutral(text: str) -> str:
    """What classifiers may read of a prompt: folded and without claims. May be empty. Linear work, some milliseconds at worst."""
    return without_claims(fold(text)).strip()


def is_claim(text: str, start: int, end: int) -> bool:
    """Whether ``text[start:end]`` (of a folded text) is part of what the text says about its own routing. Looks nearby only."""
    offset = max(start - _NEARBY_CHARS, 0)
    window = text[offset : end + _NEARBY_CHARS]
    return any(
        match.start() + offset < end and match.end() + offset > start
        for pattern in _open_patterns(window)
        for match in pattern.finditer(window)
    )


def _open_patterns(text: str) -> Iterator[re.Pattern[str]]:
    """The patterns of which the text holds the words that a match must have."""
    lower = text.lower()
    for needed, pattern in _GUARDS:
        if all(any(word in lower for word in words) for words in needed):
            yield pattern


def _prevails_latin(text: str) -> bool:
    return len(_LATIN.findall(text)) > len(_OTHER_ALPHABET.findall(text))
