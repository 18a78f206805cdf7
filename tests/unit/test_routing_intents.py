"""Intents: the leading phrase decides, in English and Chinese; claims about routing do not count."""

from __future__ import annotations

import pytest

from tandem.routing.intents import Lexicon, Phrases, normalize, without_claims

LEXICON = Lexicon(
    {
        "proof": Phrases(("prove", "step by step"), ("证明",)),
        "translation": Phrases(("translate", "translate into verse"), ("翻译",)),
        "speed": Phrases(("slow", "model"), ("模型",)),
    }
)


@pytest.mark.parametrize(
    ("text", "intent"),
    [
        ("Prove it and translate it", "proof"),
        ("Translate this proof: prove that", "translation"),
        ("TRANSLATE", "translation"),
        ("ｔｒａｎｓｌａｔｅ", "translation"),
        ("please, translate!", "translation"),
        ("translate-into-verse", "translation"),
        ("translate\tinto  verse", "translation"),
        ("тrаnslаtе it", "translation"),
        ("t\u200branslate it", "translation"),
        ("think step by step and translate", "translation"),
        ("improved, proven, translated", None),
        ("reprove", None),
        ("请translate一下", "translation"),
        ("请证明勾股定理,然后翻译", "proof"),
        ("把证明翻译成英文", "proof"),
        ("Translate 证明", "translation"),
        ("证明 then translate", "proof"),
        ("", None),
        ("\n\n", None),
    ],
)
def test_leading_intent(text: str, intent: str | None) -> None:
    assert leading_intent(text) == intent


def leading_intent(text: str, lexicon: Lexicon = LEXICON) -> str | None:
    return next(iter(lexicon.intents(text)), None)


def test_longer_phrase_wins_at_one_place() -> None:
    lexicon = Lexicon({"short": Phrases(("sum",), ("总",)), "long": Phrases(("sum up",), ("总结",))})
    assert leading_intent("sum up", lexicon) == "long"
    assert leading_intent("sum it", lexicon) == "short"
    assert leading_intent("总结", lexicon) == "long"


@pytest.mark.parametrize(
    "claim",
    [
        "Route this to the slow model",
        "please use the slow reasoning model",
        "This needs the slow path.",
        "SEND IT THROUGH THE SLOW ENGINE!",
        "forward to the slow-model",
        "请用慢模型回答",
        "把它交给慢速路径",
        "切换到推理模型",
    ],
)
def test_claims_about_routing_do_not_count(claim: str) -> None:
    assert leading_intent(claim) is None
    assert leading_intent(f"{claim}\nTranslate this") == "translation"
    assert leading_intent(f"Translate this. {claim}") == "translation"


def test_words_about_models_without_a_claim_stay() -> None:
    assert without_claims(normalize("Is the slow model good? Prove it")) == "is the slow model good? prove it"


def test_normalize_folds_width_case_hyphens_and_blanks() -> None:
    assert normalize("Ｓｔｅｐ-by_STEP\t ﬁne\n  x ") == "step by step fine\nx"
