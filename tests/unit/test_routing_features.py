"""Route features: bounded, typed, and the same after a trip over the wire."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tandem.errors import InvalidRequest
from tandem.routing.features import HEAD_CHARS, TAIL_CHARS, RouteFeatures, extract_features


def features_of(text: str, **fields: Any) -> RouteFeatures:
    return extract_features(text, **{"num_prompt_tokens": 10, "num_turns": 1, **fields})


def test_features_are_the_same_after_json() -> None:
    features = features_of("é漢 `x` \n", path="slow", task="proof", api_path="/v1/x", source="ide", num_turns=3)
    assert RouteFeatures.from_json(features.to_json()) == features


def test_text_keeps_head_and_tail_of_a_long_prompt() -> None:
    features = features_of("h" * 5000 + "t" * 5000)
    assert features.text == "h" * HEAD_CHARS + "\n" + "t" * TAIL_CHARS
    assert features_of("x" * (HEAD_CHARS + TAIL_CHARS)).text == "x" * (HEAD_CHARS + TAIL_CHARS)


@pytest.mark.parametrize(
    "text",
    [
        "```\nx\n```",
        "def f(x):\n    return x",
        "Why does it fail?\n  int x = 3;\n",
        "SELECT a FROM b",
        "#include <stdio.h>",
        "const f = (x) => x",
        "<p>hi</p>",
    ],
)
def test_code_is_seen(text: str) -> None:
    assert features_of(text).has_code


@pytest.mark.parametrize(
    "text", ["Import duties are high.", "The class was fun; we left", "Choose (a) or (b).", "from here to there", "select a book"]
)
def test_prose_is_no_code(text: str) -> None:
    assert not features_of(text).has_code


@pytest.mark.parametrize("text", ["what is 12 * 7?", "3+4", "17 - 5 =", "100 / (4)", "2^10", "12×3", "8 = ?"])
def test_arithmetic_is_seen(text: str) -> None:
    assert features_of(text).has_arithmetic


@pytest.mark.parametrize("text", ["on 2024-01-05", "pages 3-7", "24/7 service", "version 1.2", "call 555-1234", "C++ and 4 cats"])
def test_dates_and_ranges_are_no_arithmetic(text: str) -> None:
    assert not features_of(text).has_arithmetic


@pytest.mark.parametrize(
    ("text", "language"),
    [("Hello", "en"), ("请翻译 this one", "zh"), ("Where is 北京 in this map?", "other"), ("été", "other"), ("", "other")],
)
def test_language_is_told_by_its_letters(text: str, language: str) -> None:
    assert features_of(text).language == language


@pytest.mark.parametrize(
    ("field", "value"),
    [("path", "medium"), ("path", ""), ("path", "FAST"), ("task", "x" * 201), ("source", "x" * 201), ("api_path", "/" * 201)],
)
def test_faulty_field_is_refused_by_name(field: str, value: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        features_of("x", **{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    "change",
    [
        {"path": "medium"},
        {"language": "fr"},
        {"text": 7},
        {"num_prompt_tokens": -1},
        {"num_prompt_tokens": True},
        {"num_turns": 1.5},
        {"has_code": 1},
        {"extra": 1},
        {"task": None},
    ],
)
def test_json_of_another_form_is_refused(change: dict[str, Any]) -> None:
    content = json.loads(features_of("x").to_json()) | change
    with pytest.raises(InvalidRequest) as caught:
        RouteFeatures.from_json(json.dumps(content))
    assert caught.value.field == "route_features"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"text": NaN}', "[" * 5000])
def test_text_that_is_no_features_object_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        RouteFeatures.from_json(text)


@pytest.mark.parametrize("unit", ["3 - ", "SELECT ", " \t", "{;", "漢", "</a"])
def test_extraction_is_fast_on_hostile_text(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    start = time.process_time()
    features_of(text)
    assert time.process_time() - start < 0.05
