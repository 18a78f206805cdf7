"""The numbers that the route classifier's head sees beside the sentence embedding.

* Hashed n-grams (Weinberger et al. 2009, "Feature hashing for large scale multitask learning"): words and pairs of words, and
  runs of one to three Han characters, since the encoder knows English only. The beginning and the end of a prompt count a second
  time (:func:`parts_of`).
* Surface: lengths, shares of kinds of characters, marks of code and arithmetic. Few and tame, so that length does not decide.
"""

from __future__ import annotations

import itertools
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tandem.routing.features import RouteFeatures

Vector = npt.NDArray[np.float32]

NUM_BUCKETS = 4096
SURFACE = (
    "log_chars",
    "log_lines",
    "log_sentences",
    "digit_share",
    "upper_share",
    "punctuation_share",
    "han_share",
    "log_numbers",
    "num_questions",
    "has_code",
    "has_arithmetic",
    "has_quote",
    "has_colon_line",
    "has_list",
    "has_math_sign",
    "mean_word_chars",
)
_MAX_WORDS, _MAX_HAN = 400, 400
_PART_UNITS, _MIN_LEAD_UNITS, _MIN_TAIL_UNITS = 160, 15, 40
# Folding makes narrow marks of the wide ones that end a Chinese sentence without a blank.
_BOUNDARY = re.compile(r"[.!?:;]+\s+|(?<=[\u3400-\u4dbf\u4e00-\u9fff])[!?:;]+|[。！？：；]|\n+")
_TOKEN = re.compile(r"[a-z]+(?:'[a-z]+)?|\d+|[+*=<>^%?!;{}()\[\]\\|]")
_HAN_RUN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]+")
_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_SENTENCE_END = re.compile(r"[.!?。！？]+(?:\s|$)|[。！？]")
_LIST = re.compile(r"^\s{0,8}(?:[-*•]|\d{1,2}[.)、])\s?\S", re.MULTILINE)
_MATH = re.compile(r"[∑∫√≤≥≠∈∀∃→∞πθ^]|\\(?:frac|sum|int|sqrt|lim)|\b[a-z]\s?[=+]\s?[a-z0-9]|\bmod\b")


def parts_of(text: str) -> tuple[str, str]:
    """The beginning and the end of ``text``, a sentence or line or two each: where an instruction stands beside its material.

    Both are at most 160 units long, where a Han character counts three; of a short text both are the whole.
    """
    ends = [match.end() for match in _BOUNDARY.finditer(text[:_PART_UNITS])]
    lead = next((text[:end] for end in ends if _num_units(text[:end]) >= _MIN_LEAD_UNITS), text)
    offset = max(len(text) - _PART_UNITS, 0)
    starts = [match.end() + offset for match in _BOUNDARY.finditer(text[offset:])]
    tail = next((text[start:] for start in reversed(starts) if _num_units(text[start:]) >= _MIN_TAIL_UNITS), text)
    return _cut(lead), _cut(tail[::-1])[::-1]


def _num_units(text: str) -> int:
    return len(text.strip()) + 2 * len(_HAN.findall(text))


def _cut(text: str) -> str:
    left = _PART_UNITS
    for place, char in enumerate(text):
        left -= 3 if _HAN.match(char) else 1
        if left < 0:
            return text[:place]
    return text


def ngram_counts(text: str) -> dict[int, float]:
    """Bucket -> weight; the n-grams of the whole, of its beginning and of its end are each of unit length as a vector.

    ``text`` comes from :func:`tandem.routing.intents.normalize`. Bounded work.
    """
    lead, tail = parts_of(text)
    weights: dict[int, float] = {}
    for mark, part in (("", text), ("^", lead), ("$", tail)):
        counts = Counter(zlib.crc32(f"{mark}{gram}".encode()) % NUM_BUCKETS for gram in _grams(part))
        found = {bucket: math.log1p(count) for bucket, count in counts.items()}
        norm = math.sqrt(sum(weight * weight for weight in found.values()))
        for bucket, weight in found.items():
            weights[bucket] = weights.get(bucket, 0.0) + weight / norm
    return dict(sorted(weights.items()))


def _grams(text: str) -> Iterator[str]:
    """Words and pairs of words; runs of one to three Han characters."""
    # A number is a number: which one says nothing of the kind of request.
    words = ["0" if word.isdigit() else word for word in _TOKEN.findall(text)[:_MAX_WORDS]]
    yield from words
    yield from (f"{left} {right}" for left, right in itertools.pairwise(words))
    num_left = _MAX_HAN
    for run in _HAN_RUN.findall(text):
        part = run[:num_left]
        num_left -= len(part)
        for size in (1, 2, 3):
            yield from (part[start : start + size] for start in range(len(part) - size + 1))
        if num_left <= 0:
            return


def surface_vector(features: RouteFeatures) -> Vector:
    """Figures of the text as it was sent, in the order of ``SURFACE``. [len(SURFACE)]"""
    text = features.text
    size = max(len(text), 1)
    words = re.findall(r"[A-Za-z]+", text)
    num_han = len(_HAN.findall(text))
    return np.array(
        [
            math.log1p(len(text) + num_han),  # a Han character says about as much as two letters
            math.log1p(text.count("\n")),
            math.log1p(len(_SENTENCE_END.findall(text))),
            sum(char.isdigit() for char in text) / size,
            sum(char.isupper() for char in text) / size,
            sum(not char.isalnum() and not char.isspace() for char in text) / size,
            num_han / size,
            math.log1p(len(_NUMBER.findall(text))),
            min(text.count("?") + text.count("？"), 3),
            features.has_code,
            features.has_arithmetic,
            any(mark in text for mark in '"“”「『«'),
            re.search(r"[:：]\s*(?:\n|$)|[:：]\s*[\"“「]", text) is not None,
            _LIST.search(text) is not None,
            _MATH.search(text) is not None,
            min(sum(map(len, words)) / max(len(words), 1), 12.0),
        ],
        np.float32,
    )
