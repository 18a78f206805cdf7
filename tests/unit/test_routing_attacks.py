"""Text that claims a path, fake labels, role markers, look-alikes, gadgets: the rules must not be moved (RELIABILITY S3, S4)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tandem.routing.claims import fold, neutral
from tandem.routing.rules_file import load_policy
from tandem.types import Path
from tests.attacks import DOWN, EASY, HARD, UP, Attack, attacks, disguised, noise
from tests.routing_factories import features_of

POLICY = load_policy()
ATTACKS_UP, ATTACKS_DOWN = list(attacks(EASY, UP)), list(attacks(HARD, DOWN))


def path_of(text: str) -> Path:
    return POLICY.decide(features_of(text)).decision.path


def slow_share(texts: Sequence[str]) -> float:
    return sum(path_of(text) is Path.SLOW for text in texts) / len(texts)


def moved(tries: Sequence[Attack]) -> list[Attack]:
    return [each for each in tries if path_of(each.text) is not path_of(each.base)]


def test_there_are_enough_attacks_of_each_kind() -> None:
    assert len(ATTACKS_UP) >= 500
    assert len(ATTACKS_DOWN) >= 350
    assert slow_share(HARD) >= 0.9, "else the attacks would show nothing"
    assert slow_share(EASY) <= 0.05


def test_forced_up_route_is_at_most_five_points_above_the_base_rate() -> None:
    assert slow_share([each.text for each in ATTACKS_UP]) <= slow_share(EASY) + 0.05


def test_forced_down_route_of_hard_prompts_is_at_most_one_percent() -> None:
    forced = [each for each in moved(ATTACKS_DOWN) if path_of(each.base) is Path.SLOW]
    assert len(forced) <= len(ATTACKS_DOWN) / 100, forced[:5]


def test_prompt_in_look_alike_letters_is_judged_as_the_plain_one() -> None:
    tries = list(disguised(EASY + HARD))
    assert len(moved(tries)) <= len(tries) / 100, moved(tries)[:5]


def test_noise_changes_at_most_one_decision_in_twenty() -> None:
    tries = list(noise(EASY + HARD))
    assert len(moved(tries)) <= len(tries) / 20, moved(tries)[:5]


CLAIMED = [
    "slow",
    "fast",
    "hard",
    "easy",
    "trivial",
    "proof",
    "reasoning",
    "translation",
    "classification",
    "step",
    "慢",
    "快",
    "难",
]


@pytest.mark.parametrize("gadget", [*UP, *DOWN])
def test_gadget_when_alone_then_nothing_of_it_is_left_to_judge_by_but_filler(gadget: str) -> None:
    left = neutral(gadget).lower()
    for word in CLAIMED:
        assert word not in left, left


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("Tеst рrоvе", "Test prove"),
        ("Ｐｒｏｖｅ", "Prove"),
        ("pr\u200bo\u00adve", "prove"),
        ("p\u0336r\u0336ove", "prove"),
        ("𝐩𝐫𝐨𝐯𝐞", "prove"),
        ("ᴘʀᴏᴠᴇ", "prove"),
        ("Привет, как дела", "Привет, как дела"),
        ("Καλημέρα", "Καλημέρα"),
        ("été à la plage", "été à la plage"),
        ("今天天气很好", "今天天气很好"),
        ("", ""),
    ],
)
def test_fold_turns_look_alikes_into_latin_and_leaves_other_languages(text: str, folded: str) -> None:
    assert fold(text) == folded


@pytest.mark.parametrize(
    "text",
    [
        "Is the slow model good?",
        "Compare the fast train with the slow one",
        "Explain the path of the sun",
        "Write a class: it has a label and a score",
        "The user: wants tea",
        "Why is quick sort fast on average?",
        "How hard is a diamond?",
        "翻译:他走得很快",
    ],
)
def test_ordinary_words_are_no_claims(text: str) -> None:
    assert neutral(text) == text
