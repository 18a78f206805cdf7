"""Records of decisions: what one decision rested on, as JSON, so that it can be explained and replayed later, bit for bit.

A record holds features, scores, thresholds and load, and no text of the prompt. Replaying it asks no stage and no engine: the
decision is computed again from what the stages said then, by the code that decided then (:func:`tandem.routing.policy.settle`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import orjson

from tandem.errors import InvalidRequest
from tandem.routing.decision import Outcome, RouteDecision, StageReport, win_rate
from tandem.routing.features import RouteFeatures
from tandem.routing.load import EngineLoad, Slo
from tandem.routing.policy import Decided, Evidence, PolicyTerms, SessionHint, settle
from tandem.types import Path

VERSION = 1
_RECORDED = tuple(field.name for field in fields(RouteFeatures) if field.name not in ("text", "session"))


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """``features``: those of the prompt without its text and without the name of its session. ``rules``: names the rules file."""

    rules: str
    terms: PolicyTerms
    features: dict[str, Any]
    evidence: Evidence
    decision: RouteDecision

    @classmethod
    def of(cls, decided: Decided, features: RouteFeatures, terms: PolicyTerms, rules: str) -> DecisionRecord:
        kept = {name: getattr(features, name) for name in _RECORDED}
        return cls(rules, terms, kept, decided.evidence, decided.decision)

    def to_json(self) -> str:
        value = {"version": VERSION, **{field.name: getattr(self, field.name) for field in fields(self)}}
        return orjson.dumps(value).decode()

    @classmethod
    def from_json(cls, text: str) -> DecisionRecord:
        """Raises: InvalidRequest when this is not what :meth:`to_json` writes."""
        try:
            value = orjson.loads(text)
            if value.pop("version") != VERSION:
                raise ValueError("another version")
            return cls(
                rules=value["rules"],
                terms=_terms(value["terms"]),
                features=value["features"],
                evidence=_evidence(value["evidence"]),
                decision=_decision(value["decision"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidRequest("record", text, f"give a record that the router has written ({error})") from None


def replay(record: DecisionRecord) -> RouteDecision:
    """The decision again, from the record alone. Equal to ``record.decision`` unless the code decides otherwise by now."""
    return replace(settle(record.evidence, record.terms), cost_ms=record.decision.cost_ms)


def explain(record: DecisionRecord) -> list[str]:
    """The record in words, a line each."""
    evidence, decision = record.evidence, record.decision
    lines = [f"decision   {decision.line}", f"rules      {record.rules}", f"asked for  {_asked(record)}"]
    lines += [f"stage      {_report(report)}" for report in evidence.reports]
    if not evidence.reports:
        lines.append("stage      none was asked")
    if decision.score is not None and decision.threshold is not None:
        sign = ">=" if win_rate(decision.score) >= round(decision.threshold, 6) else "<"
        lines.append(f"threshold  win rate of the slow path {win_rate(decision.score):g} {sign} {decision.threshold:g}")
    if evidence.session is not None:
        lines.append(f"session    was on {evidence.session.engine} with {evidence.session.num_tokens} tokens")
    lines.append(f"slo        ttft {_limit(evidence.slo.ttft_ms)}, tpot {_limit(evidence.slo.tpot_ms)}")
    for name, load in evidence.load.items():
        lines.append(
            f"load       {name}: {load.num_in_flight} in flight, {load.num_waiting} waiting, KV {load.kv_use:.0%}, "
            f"predicted ttft {load.ttft_ms:.0f} ms, tpot {load.tpot_ms:.0f} ms"
        )
    same = replay(record) == decision
    lines.append("replay     gives the same decision" if same else f"replay     gives ANOTHER decision: {replay(record).line}")
    return lines


def _asked(record: DecisionRecord) -> str:
    names = ("path", "task", "api_path", "source", "language", "num_prompt_tokens", "num_turns", "has_code", "has_arithmetic")
    return ", ".join(f"{name}={record.features[name]}" for name in names if record.features.get(name) not in (None, "", False))


def _report(report: StageReport) -> str:
    score = "" if report.score is None else f" score {report.score:.4f}"
    return f"{report.stage}: {report.outcome.value}{score} {report.detail} ({report.cost_ms:.2f} ms)"


def _limit(limit_ms: float | None) -> str:
    return "any" if limit_ms is None else f"<= {limit_ms:g} ms"


def _terms(value: dict[str, Any]) -> PolicyTerms:
    paths = {name: Path(path) for name, path in value["paths"].items()}
    return PolicyTerms(**{**value, "paths": paths, "slo": Slo(**value["slo"])})


def _evidence(value: dict[str, Any]) -> Evidence:
    return Evidence(
        **{
            **value,
            "slo": Slo(**value["slo"]),
            "reports": tuple(StageReport(**{**report, "outcome": Outcome(report["outcome"])}) for report in value["reports"]),
            "load": {name: EngineLoad(**load) for name, load in value["load"].items()},
            "session": None if value["session"] is None else SessionHint(**value["session"]),
        }
    )


def _decision(value: dict[str, Any]) -> RouteDecision:
    return RouteDecision(**{**value, "path": Path(value["path"])})
