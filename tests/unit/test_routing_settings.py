"""The numbers of the rules file: defaults, what is read, and complaints that name line and remedy."""

from __future__ import annotations

import pytest

from tandem.errors import SetupError
from tandem.routing.load import Slo
from tandem.routing.rules_file import load_policy, parse_policy
from tandem.routing.settings import ClassifierSettings, Settings
from tandem.routing.stages import Band
from tests.routing_factories import features_of

BASE = """\
version: 1
engines: {quick: fast, deep: slow}
explicit: {fast: quick, slow: deep}
default: quick
intents:
  proof: {english: [prove], chinese: [证明]}
rules:
  - {name: hard, when: {intent: [proof]}, engine: deep}
"""
SECTIONS = """\
threshold: 0.4
stages:
  budget_ms: 60
  rules: {unsure: [0.2, 0.7], fast_score: 0.9, slow_score: 0.1, prior: 0.65, contested_weight: 0.5}
  classifier: {enabled: false, budget_ms: 7.5, threshold: 0.3, unsure: never, engines: {code: quick}}
  scorer: {engine: quick, enabled: true, budget_ms: 100, unsure: [0, 1], max_text_tokens: 20, slope: 2.5, intercept: -1}
load: {enabled: false, slo_ttft_ms: 500, slo_tpot_ms: 50.5, margin: 0.2}
sessions: {enabled: false, max_sessions: 3, ttl_s: 2}
"""


def test_sections_when_left_out_then_defaults() -> None:
    assert parse_policy(BASE, "r.yaml").settings == Settings()


def test_sections_when_given_then_read() -> None:
    got = parse_policy(BASE + SECTIONS, "r.yaml").settings
    assert (got.threshold, got.budget_ms) == (0.4, 60)
    assert (got.rules.unsure, got.rules.fast_score, got.rules.slow_score) == (Band(0.2, 0.7), 0.9, 0.1)
    assert (got.rules.scores.prior, got.rules.scores.contested_weight) == (0.65, 0.5)
    assert got.classifier == ClassifierSettings(False, 7.5, 0.3, Band(1.0, 0.0), {"code": "quick"})
    assert (got.scorer.is_enabled, got.scorer.engine, got.scorer.budget_ms, got.scorer.unsure) == (True, "quick", 100, Band(0, 1))
    assert (got.scorer.max_text_tokens, got.scorer.slope, got.scorer.intercept) == (20, 2.5, -1)
    assert (got.load.is_enabled, got.load.slo, got.load.margin) == (False, Slo(500, 50.5), 0.2)
    assert (got.sessions.is_enabled, got.sessions.max_sessions, got.sessions.ttl_s) == (False, 3, 2)


def test_head_when_named_then_means_the_trained_head() -> None:
    got = parse_policy(BASE + "stages:\n  classifier: {threshold: head, unsure: head}\n", "r.yaml").settings
    assert (got.classifier.threshold, got.classifier.unsure) == (None, None)


@pytest.mark.parametrize(
    ("old", "new", "line", "complaint"),
    [
        ("threshold: 0.4", "threshold: 1.4", 9, "give a number from 0 to 1"),
        ("threshold: 0.4", "threshold: .nan", 9, "give a number from 0 to 1"),
        ("threshold: 0.4", "threshold: '0.4'", 9, "give a number from 0 to 1"),
        ("threshold: 0.4", "threshold: true", 9, "give a number from 0 to 1"),
        ("budget_ms: 60", "budget_ms: -1", 11, "give a number from 0 to"),
        ("unsure: [0.2, 0.7]", "unsure: [0.7, 0.2]", 12, "lower end first"),
        ("unsure: [0.2, 0.7]", "unsure: [0.2]", 12, "low, high"),
        ("unsure: [0.2, 0.7]", "unsure: [0.2, 1.7]", 12, "from 0 to 1"),
        ("unsure: [0.2, 0.7]", "unsure: sometimes", 12, "use one of never"),
        ("prior: 0.65", "prier: 0.65", 12, "unknown key prier"),
        ("enabled: false, budget_ms: 7.5", "enabled: maybe, budget_ms: 7.5", 13, "true or false"),
        ("budget_ms: 7.5", "budget_ms: 0", 13, "give a number from 0.1"),
        ("{code: quick}", "{code: deep}", 13, "use one of quick"),
        ("scorer: {engine: quick, ", "scorer: {", 14, "engine is missing"),
        ("max_text_tokens: 20", "max_text_tokens: 0", 14, "from 1 to 4096"),
        ("max_text_tokens: 20", "max_text_tokens: 2.5", 14, "whole number"),
        ("slope: 2.5", "slope: .inf", 14, "give a number from -1000 to 1000"),
        ("slo_ttft_ms: 500", "slo_ttft_ms: 0", 15, "give a number from 1"),
        ("margin: 0.2", "margin: 2", 15, "from 0 to 1"),
        ("max_sessions: 3", "max_sessions: 0", 16, "from 1 to 1000000"),
        ("ttl_s: 2", "ttl_s: 0", 16, "give a number from 1"),
    ],
)
def test_number_when_wrong_then_complaint_names_line_and_remedy(old: str, new: str, line: int, complaint: str) -> None:
    text = (BASE + SECTIONS).replace(old, new, 1)
    assert text != BASE + SECTIONS
    with pytest.raises(SetupError) as caught:
        parse_policy(text, "r.yaml")
    assert f"r.yaml, line {line}:" in caught.value.message
    assert complaint in caught.value.message


def test_rule_when_its_score_contradicts_its_engine_then_refused() -> None:
    with pytest.raises(SetupError, match=r"line 8: .*goes the other way"):
        parse_policy(BASE.replace("engine: deep}", "engine: deep, score: 0.9}"), "r.yaml")
    parse_policy(BASE.replace("engine: deep}", "engine: deep, score: 0.2}"), "r.yaml")


def test_rules_when_switched_off_then_the_default_answers() -> None:
    policy = parse_policy(BASE + "stages:\n  rules: {enabled: false}\n", "r.yaml")
    decided = policy.decide(features_of("prove it"))
    assert (decided.decision.engine, decided.decision.reason, decided.evidence.reports) == ("quick", "default", ())


def test_contested_keyword_is_drawn_to_the_middle_and_stays_on_its_side() -> None:
    policy = load_policy()
    (sure,) = policy.decide(features_of("Prove that 2 is prime")).evidence.reports
    (contested,) = policy.decide(features_of("Prove that 2 is prime, then translate it to French")).evidence.reports
    assert (sure.score, sure.outcome.value) == (0.05, "sure")
    assert contested.score is not None
    assert 0.05 < contested.score < 0.5
    assert contested.outcome.value == "unsure"
    assert contested.detail == "intent=proof,against=translation"


def test_fingerprint_names_the_file() -> None:
    one, two = parse_policy(BASE, "a"), parse_policy(BASE + "threshold: 0.4\n", "a")
    assert one.fingerprint != two.fingerprint
    assert one.fingerprint == parse_policy(BASE, "b").fingerprint
