"""From what the stages say, the load and the session to one decision; the part that decides is pure and can be replayed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tandem.routing.decision import Outcome, RouteDecision, StageReport, goes_slow
from tandem.routing.features import RouteFeatures
from tandem.routing.load import LoadSnapshot, Slo, first_that_keeps
from tandem.routing.settings import Settings
from tandem.routing.stages import PlannedStage, Question, StageRunner
from tandem.types import Path


@dataclass(frozen=True, slots=True)
class PolicyTerms:
    """What a decision depends on beside the request: the head of the rules file.

    ``paths``: engine -> path, in order of preference within a path. ``explicit``: path name -> engine. ``default``: the engine
    when no stage knows anything. ``slo``: for requests that name none; ``margin``: how far below the bar (in score) the fast path
    still counts as good enough when the slow one would break the SLO; a request with a threshold of its own gets none.
    ``has_load``, ``has_sessions``: whether those enter.
    """

    paths: Mapping[str, Path]
    explicit: Mapping[str, str]
    default: str
    threshold: float = 0.5
    slo: Slo = field(default_factory=Slo)
    margin: float = 0.1
    has_load: bool = True
    has_sessions: bool = True

    def engine_on(self, path: Path, wish: str | None) -> str:
        """``wish`` when it is on ``path``, else the engine that stands for the path."""
        return wish if wish is not None and self.paths[wish] is path else self.explicit[path.value]


@dataclass(frozen=True, slots=True)
class SessionHint:
    """Where the session of this request was last, and how many tokens of it that engine may still hold."""

    engine: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that one decision depends on, without the prompt. ``path``: what the caller asked for (auto, fast, slow).

    ``threshold`` None: that of the terms. ``slo``: of the request, already filled up from the terms.
    """

    path: str
    threshold: float | None
    is_tool_result: bool
    num_turns: int
    slo: Slo
    reports: tuple[StageReport, ...] = ()
    load: LoadSnapshot = field(default_factory=dict)
    session: SessionHint | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision and what it rests on."""

    decision: RouteDecision
    evidence: Evidence


class RoutingPolicy:
    """Decides the path of each request. Thread-safe; close it when no request runs any more."""

    def __init__(
        self, terms: PolicyTerms, stages: Sequence[PlannedStage], settings: Settings | None = None, *, fingerprint: str = ""
    ) -> None:
        """``fingerprint``: names the rules file in records."""
        self.terms = terms
        self.settings = settings or Settings()
        self.fingerprint = fingerprint
        self._runner = StageRunner(stages, self.settings.budget_ms)

    @property
    def paths(self) -> Mapping[str, Path]:
        """Engine name -> path, for every engine that can be chosen."""
        return self.terms.paths

    def decide(
        self, features: RouteFeatures, load: LoadSnapshot | None = None, session: SessionHint | None = None, *, tenant: str = ""
    ) -> Decided:
        """Ask the stages as far as needed, then settle."""
        start_ns = time.perf_counter_ns()
        evidence = Evidence(
            path=features.path,
            threshold=features.threshold,
            is_tool_result=features.is_tool_result,
            num_turns=features.num_turns,
            slo=Slo(features.slo_ttft_ms or self.terms.slo.ttft_ms, features.slo_tpot_ms or self.terms.slo.tpot_ms),
            load=load or {},
            session=session if session is not None and session.engine in self.terms.paths else None,
        )
        if needs_stages(evidence, self.terms):
            evidence = replace(evidence, reports=self._runner.run(Question(features, evidence.load, tenant)))
        decision = settle(evidence, self.terms)
        return Decided(replace(decision, cost_ms=(time.perf_counter_ns() - start_ns) / 1e6), evidence)

    def close(self) -> None:
        self._runner.close()


def needs_stages(evidence: Evidence, terms: PolicyTerms) -> bool:
    """False when the caller or the session has decided already."""
    return evidence.path == "auto" and not _is_tool_loop(evidence, terms)


def settle(evidence: Evidence, terms: PolicyTerms) -> RouteDecision:
    """The decision that follows from ``evidence``; pure, so that a record can be replayed. ``cost_ms`` is left 0."""
    if evidence.path != "auto":
        # A path the caller names is kept whatever the load.
        engine = terms.explicit[evidence.path]
        return RouteDecision(terms.paths[engine], engine, "explicit", "path", f"path={evidence.path}", 0.0)
    if _is_tool_loop(evidence, terms):
        assert evidence.session is not None
        engine = evidence.session.engine
        return RouteDecision(terms.paths[engine], engine, "session", "tool-loop", f"tool-loop={engine}", 0.0)
    for report in evidence.reports:
        if report.outcome is Outcome.INVALID:
            engine = terms.explicit[Path.SLOW.value]
            return RouteDecision(Path.SLOW, engine, report.stage, "invalid-score", "invalid-score", 0.0)
    return _with_load(_by_score(evidence, terms), evidence, terms)


def _is_tool_loop(evidence: Evidence, terms: PolicyTerms) -> bool:
    """The result of a tool belongs to the engine that asked for it; its prompt is in that engine's cache."""
    return terms.has_sessions and evidence.is_tool_result and evidence.session is not None and evidence.path == "auto"


def _by_score(evidence: Evidence, terms: PolicyTerms) -> RouteDecision:
    scored = [report for report in evidence.reports if report.score is not None]
    if not scored:
        return RouteDecision(terms.paths[terms.default], terms.default, "default", "default", "default", 0.0)
    last = scored[-1]
    assert last.score is not None
    own = terms.threshold if last.threshold is None else last.threshold
    threshold = own if evidence.threshold is None else evidence.threshold
    path = Path.SLOW if goes_slow(last.score, threshold) else Path.FAST
    decision = RouteDecision(
        path, terms.engine_on(path, last.engine), last.stage, last.reason, last.detail, 0.0, last.score, threshold
    )
    if last.engine is None and terms.paths[terms.default] is path:
        decision = replace(decision, engine=terms.default)
    return _with_session(decision, evidence, terms, is_sure=last.outcome is Outcome.SURE)


def _with_session(decision: RouteDecision, evidence: Evidence, terms: PolicyTerms, *, is_sure: bool) -> RouteDecision:
    """A conversation stays on its engine while that is a matter of taste: its prefix is cached there.

    A stage that is sure, and a threshold of the request's own, weigh more than the cache when it comes to the path.
    """
    if not terms.has_sessions or evidence.session is None or evidence.num_turns < 2:
        return decision
    engine = evidence.session.engine
    if terms.paths[engine] is decision.path:
        return replace(decision, engine=engine)
    if is_sure or evidence.threshold is not None:
        return decision
    return replace(decision, path=terms.paths[engine], engine=engine, stage="session", reason="stays", detail=f"stays={engine}")


def _with_load(decision: RouteDecision, evidence: Evidence, terms: PolicyTerms) -> RouteDecision:
    """Among the engines that are good enough the first that keeps the SLO; the slow path is always good enough."""
    if not terms.has_load or not evidence.load:
        return decision
    candidates = [
        decision.engine,
        *(name for name, path in terms.paths.items() if path is decision.path and name != decision.engine),
    ]
    if decision.path is Path.FAST or (evidence.threshold is None and _is_nearly_good_enough(decision, terms)):
        candidates += [name for name, path in terms.paths.items() if path is not decision.path]
    engine, broken = first_that_keeps(candidates, evidence.load, evidence.slo)
    if engine == decision.engine:
        return decision
    # "stage" stays: it says how good the fast path would be; the load only chose among what was good enough.
    detail = f"{decision.detail} but {decision.engine} {broken}"
    return replace(decision, path=terms.paths[engine], engine=engine, reason="load", detail=detail)


def _is_nearly_good_enough(decision: RouteDecision, terms: PolicyTerms) -> bool:
    if decision.score is None or decision.threshold is None:
        return False
    return not goes_slow(decision.score, decision.threshold + terms.margin)
