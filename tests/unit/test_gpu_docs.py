"""docs/gpu.md says what is: its tests and rules exist, its commands are those of the plan."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from build_engines.commands import Paths
from build_engines.gpu_plan import make_plan
from build_engines.rules import RULES
from build_engines.spec import load_deployment, preset_names
from tandem.capabilities import Capability

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
DEPLOYMENT_RULES = {"kv-shares-above-one", "tenants-share-blocks", "vocabularies-differ"}


def test_document_when_it_names_tests_then_they_exist():
    named = set(re.findall(r"`(test_[a-z0-9_]+)`", TEXT))
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_[A-Za-z0-9_]+)", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 20
    assert named <= defined, sorted(named - defined)


def test_document_when_it_lists_complaints_then_all_21_have_a_proof():
    rows = re.findall(r"^\| (\d+) \|(.*)\|$", TEXT, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 22))
    for number, row in rows:
        assert "test_" in row or "rule" in row, number


def test_document_when_it_names_rules_then_they_exist():
    known = {rule.name for rule in RULES} | DEPLOYMENT_RULES
    cells = " ".join(re.findall(r"rules? ((?:`[a-z0-9-]+`(?:, )?)+)", TEXT))
    named = set(re.findall(r"`([a-z0-9-]+)`", cells))
    assert len(named) >= 10
    assert named <= known, sorted(named - known)


def test_document_when_it_shows_commands_then_they_are_those_of_the_plan():
    plan = make_plan(load_deployment("h100"), Paths(), "plan.json")
    shown = re.sub(r" \\\n\s+", " ", TEXT)
    for step in plan.steps:
        if step.engine == "slow":
            assert step.shell in shown, step.shell


@pytest.mark.parametrize("capability", Capability)
def test_document_when_it_lists_capabilities_then_none_is_missing(capability):
    assert re.search(rf"^\|.*`{capability.value}`", TEXT, re.MULTILINE)


def test_document_when_it_lists_presets_then_all_of_them():
    assert all(f"`{name}`" in TEXT for name in preset_names())
