"""The rules file: what is wrong is named with its line and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.errors import SetupError
from tandem.routing.features import extract_features
from tandem.routing.rules_file import load_policy, parse_policy

GOOD = """\
version: 1
engines: {quick: fast, deep: slow}
explicit: {fast: quick, slow: deep}
default: quick
intents:
  proof: {english: [prove], chinese: [证明]}
rules:
  - name: hard
    when: {intent: [proof], max_prompt_tokens: 0x10}
    engine: deep
  - name: code
    when: {has_code: false, min_turns: 2, language: [zh]}
    engine: deep
"""


def test_good_file_decides_as_it_says() -> None:
    policy = parse_policy(GOOD, "rules.yaml")
    assert set(policy.paths) == {"quick", "deep"}
    hard = policy.decide(extract_features("prove it", num_prompt_tokens=16, num_turns=1)).decision
    assert (hard.engine, hard.detail) == ("deep", "num_prompt_tokens=16,intent=proof")
    assert policy.decide(extract_features("prove it", num_prompt_tokens=17, num_turns=1)).decision.reason == "default"
    chat = policy.decide(extract_features("你好", num_prompt_tokens=16, num_turns=2)).decision
    assert chat.detail == "language=zh,has_code=no,num_turns=2"


@pytest.mark.parametrize(
    ("old", "new", "line", "complaint"),
    [
        ("version: 1", "version: 2", 1, "version 2"),
        ("version: 1", "version: one", 1, "whole number"),
        ("version: 1", "version: true", 1, "whole number"),
        ("version: 1\n", "", 1, "version is missing"),
        ("default: quick", "default: turbo", 4, "'?turbo'?; use one of quick, deep"),
        ("default: quick", "default: [quick]", 4, "got a list"),
        ("default: quick", "default: quick\nspeed: 3", 5, "unknown key speed; known here: version"),
        ("default: quick", "default: quick\ndefault: deep", 5, "default stands here twice"),
        ("{quick: fast, deep: slow}", "{quick: fast, deep: deeper}", 2, "deeper; use one of fast, slow"),
        ("{quick: fast, deep: slow}", "[quick]", 2, "give a mapping"),
        ("{fast: quick, slow: deep}", "{fast: quick}", 3, "slow is missing"),
        ("{fast: quick, slow: deep}", "{fast: deep, slow: deep}", 3, "deep; use one of quick"),
        ("english: [prove]", "english: []", 6, "empty list"),
        ("english: [prove]", "english: [3]", 6, "give a string"),
        ("english: [prove]", "english: [null]", 6, "give a string"),
        ("english: [prove]", 'english: [""]', 6, "give text"),
        ("english: [prove]", "english: [(prove]", 6, "give text"),
        (
            "{english: [prove], chinese: [证明]}",
            "{english: [prove], chinese: [证明]}\n  plan: {english: [Prove], chinese: [规划]}",
            7,
            "Prove stands in proof and in plan",
        ),
        ("chinese: [证明]", "french: [prouver]", 6, "unknown key french"),
        (", chinese: [证明]", "", 6, "chinese is missing"),
        ("intent: [proof]", "intent: [poof]", 9, "poof; use one of proof"),
        ("intent: [proof]", "intents: [proof]", 9, "unknown key intents; known here: task"),
        ("max_prompt_tokens: 0x10", "max_prompt_tokens: -1", 9, "at least 0"),
        ("max_prompt_tokens: 0x10", "max_prompt_tokens: 1.5", 9, "whole number"),
        ("engine: deep\n  - name: code", "engine: wide\n  - name: code", 10, "wide"),
        ("    engine: deep\n  - name: code", "  - name: code", 8, "engine is missing"),
        ("name: code", "name: hard", 11, "the name hard is taken"),
        ("name: code", "name: No Spaces", 11, "give text of the form"),
        ("has_code: false", "has_code: maybe", 12, "true or false"),
        ("{has_code: false, min_turns: 2, language: [zh]}", "{}", 12, "without conditions"),
        ("language: [zh]", "language: [fr]", 12, "fr; use one of en, zh, other"),
        ("language: [zh]", "task: [Code]", 12, "Code"),
        ("language: [zh]", "api_path: [v1]", 12, "v1"),
        ("language: [zh]", "language: zh", 12, "give a list"),
        ("rules:", "rules: [", 8, "mend the YAML"),
        ("rules:\n", "rules: []\nmore:\n", 8, "unknown key more"),
    ],
)
def test_faulty_file_is_refused_naming_file_line_and_remedy(old: str, new: str, line: int, complaint: str) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(SetupError, match=complaint) as caught:
        parse_policy(GOOD.replace(old, new), "rules.yaml")
    assert "rules.yaml, line " in caught.value.message
    assert f"line {line}:" in caught.value.message
    assert "; " in caught.value.message, "a remedy follows"
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("text", ["", "# only a comment\n", "- a\n", "just text", "a: \x00b", "a: &x [*x"])
def test_file_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises(SetupError, match=r"rules\.yaml"):
        parse_policy(text, "rules.yaml")


def test_load_policy_reads_a_file_and_names_one_it_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    with pytest.raises(SetupError, match=r"my\.yaml"):
        load_policy(path)
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(SetupError, match=r"my\.yaml"):
        load_policy(path)
    path.write_text(GOOD, encoding="utf-8")
    assert set(load_policy(path).paths) == {"quick", "deep"}
