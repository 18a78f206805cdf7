"""The numbers of the rules file: threshold, stages with their budgets and grey bands, load, sessions.

Every section may be left out; the defaults are those of this file and of ``default_rules.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tandem.routing.load import Slo
from tandem.routing.rules import RuleScores
from tandem.routing.stages import Band
from tandem.routing.yaml_reader import YamlNode
from tandem.types import Path

_MAX_MS = 600_000.0


@dataclass(frozen=True, slots=True)
class RulesSettings:
    """``fast_score`` and ``slow_score``: of rules that state none."""

    is_enabled: bool = True
    unsure: Band = field(default_factory=lambda: Band(0.25, 0.75))
    fast_score: float = 0.95
    slow_score: float = 0.05
    scores: RuleScores = field(default_factory=RuleScores)

    def score_of(self, path: Path) -> float:
        return self.fast_score if path is Path.FAST else self.slow_score


@dataclass(frozen=True, slots=True)
class ClassifierSettings:
    """``engines``: task class -> engine it prefers on the fast path.

    ``threshold`` and ``unsure`` None: those of the trained head.
    """

    is_enabled: bool = True
    budget_ms: float = 25.0
    threshold: float | None = None
    unsure: Band | None = None
    engines: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScorerSettings:
    """``engine``: the one that scores. ``max_text_tokens``: as much of the prompt as it reads.

    The calibrated score is ``1 / (1 + exp(-(slope * raw + intercept)))`` (Platt), with ``raw`` the expected digit in 0..1.
    """

    is_enabled: bool = False
    budget_ms: float = 150.0
    unsure: Band = field(default_factory=lambda: Band(1.0, 0.0))
    engine: str = ""
    max_text_tokens: int = 48
    slope: float = 1.0
    intercept: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """``slo``: of requests that name none. ``margin``: see :class:`PolicyTerms`."""

    is_enabled: bool = True
    slo: Slo = field(default_factory=Slo)
    margin: float = 0.1


@dataclass(frozen=True, slots=True)
class SessionSettings:
    is_enabled: bool = True
    max_sessions: int = 4096
    ttl_s: float = 1800.0


@dataclass(frozen=True, slots=True)
class Settings:
    """``budget_ms``: of one decision, all stages together."""

    threshold: float = 0.5
    budget_ms: float = 200.0
    rules: RulesSettings = field(default_factory=RulesSettings)
    classifier: ClassifierSettings = field(default_factory=ClassifierSettings)
    scorer: ScorerSettings = field(default_factory=ScorerSettings)
    load: LoadSettings = field(default_factory=LoadSettings)
    sessions: SessionSettings = field(default_factory=SessionSettings)


def read_settings(root: Mapping[str, YamlNode], paths: Mapping[str, Path]) -> Settings:
    """From the sections of the file that are there. Raises: SetupError naming file, line and remedy."""
    stages = root["stages"].mapping(optional=("budget_ms", "rules", "classifier", "scorer")) if "stages" in root else {}
    return Settings(
        threshold=_number(root, "threshold", 0.5, 0.0, 1.0),
        budget_ms=_number(stages, "budget_ms", 200.0, 0.0, _MAX_MS),
        rules=_rules(stages["rules"]) if "rules" in stages else RulesSettings(),
        classifier=_classifier(stages["classifier"], paths) if "classifier" in stages else ClassifierSettings(),
        scorer=_scorer(stages["scorer"], paths) if "scorer" in stages else ScorerSettings(),
        load=_load(root["load"]) if "load" in root else LoadSettings(),
        sessions=_sessions(root["sessions"]) if "sessions" in root else SessionSettings(),
    )


def _rules(node: YamlNode) -> RulesSettings:
    got = node.mapping(optional=("enabled", "unsure", "fast_score", "slow_score", "prior", "contested_weight"))
    default = RulesSettings()
    return RulesSettings(
        is_enabled=_flag(got, "enabled", default.is_enabled),
        unsure=_band(got, "unsure", default.unsure),
        fast_score=_number(got, "fast_score", default.fast_score, 0.0, 1.0),
        slow_score=_number(got, "slow_score", default.slow_score, 0.0, 1.0),
        scores=RuleScores(
            prior=_number(got, "prior", default.scores.prior, 0.0, 1.0),
            contested_weight=_number(got, "contested_weight", default.scores.contested_weight, 0.0, 1.0),
        ),
    )


def _classifier(node: YamlNode, paths: Mapping[str, Path]) -> ClassifierSettings:
    got = node.mapping(optional=("enabled", "budget_ms", "threshold", "unsure", "engines"))
    default = ClassifierSettings()
    fast = [name for name, path in paths.items() if path is Path.FAST]
    engines = {task: entry.one_of(fast) for task, entry in got["engines"].free_mapping().items()} if "engines" in got else {}
    return ClassifierSettings(
        is_enabled=_flag(got, "enabled", default.is_enabled),
        budget_ms=_number(got, "budget_ms", default.budget_ms, 0.1, _MAX_MS),
        threshold=None if _is_head(got, "threshold") else got["threshold"].number(0.0, 1.0),
        unsure=None if _is_head(got, "unsure") else _band(got, "unsure", Band(1.0, 0.0)),
        engines=engines,
    )


def _scorer(node: YamlNode, paths: Mapping[str, Path]) -> ScorerSettings:
    got = node.mapping(required=("engine",), optional=("enabled", "budget_ms", "unsure", "max_text_tokens", "slope", "intercept"))
    default = ScorerSettings()
    max_text_tokens = got["max_text_tokens"].count() if "max_text_tokens" in got else default.max_text_tokens
    if not 1 <= max_text_tokens <= 4096:
        raise got["max_text_tokens"].error(f"got {max_text_tokens}", "give a whole number from 1 to 4096")
    return ScorerSettings(
        is_enabled=_flag(got, "enabled", True),
        budget_ms=_number(got, "budget_ms", default.budget_ms, 0.1, _MAX_MS),
        unsure=_band(got, "unsure", default.unsure),
        engine=got["engine"].one_of(paths),
        max_text_tokens=max_text_tokens,
        slope=_number(got, "slope", default.slope, -1000.0, 1000.0),
        intercept=_number(got, "intercept", default.intercept, -1000.0, 1000.0),
    )


def _load(node: YamlNode) -> LoadSettings:
    got = node.mapping(optional=("enabled", "slo_ttft_ms", "slo_tpot_ms", "margin"))
    return LoadSettings(
        is_enabled=_flag(got, "enabled", True),
        slo=Slo(
            got["slo_ttft_ms"].number(1.0, _MAX_MS) if "slo_ttft_ms" in got else None,
            got["slo_tpot_ms"].number(1.0, _MAX_MS) if "slo_tpot_ms" in got else None,
        ),
        margin=_number(got, "margin", LoadSettings().margin, 0.0, 1.0),
    )


def _sessions(node: YamlNode) -> SessionSettings:
    got = node.mapping(optional=("enabled", "max_sessions", "ttl_s"))
    default = SessionSettings()
    max_sessions = got["max_sessions"].count() if "max_sessions" in got else default.max_sessions
    if not 1 <= max_sessions <= 1_000_000:
        raise got["max_sessions"].error(f"got {max_sessions}", "give a whole number from 1 to 1000000")
    return SessionSettings(
        is_enabled=_flag(got, "enabled", True),
        max_sessions=max_sessions,
        ttl_s=_number(got, "ttl_s", default.ttl_s, 1.0, 1e7),
    )


def _is_head(got: Mapping[str, YamlNode], key: str) -> bool:
    """Left out or ``head``: what the trained head says."""
    return key not in got or (got[key].is_text and got[key].text() == "head")


def _number(got: Mapping[str, YamlNode], key: str, default: float, low: float, high: float) -> float:
    return got[key].number(low, high) if key in got else default


def _flag(got: Mapping[str, YamlNode], key: str, default: bool) -> bool:
    return got[key].flag() if key in got else default


def _band(got: Mapping[str, YamlNode], key: str, default: Band) -> Band:
    """``[low, high]``; ``never`` is the empty band."""
    if key not in got:
        return default
    node = got[key]
    if node.is_text:
        node.one_of(("never",))
        return Band(1.0, 0.0)
    ends = node.sequence()
    if len(ends) != 2:
        raise node.error(f"got {len(ends)} values", "give [low, high], or never")
    low, high = (end.number(0.0, 1.0) for end in ends)
    if low > high:
        raise node.error(f"got [{low:g}, {high:g}]", "give the lower end first")
    return Band(low, high)
