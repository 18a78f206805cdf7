"""Ordered rules: the first one whose conditions all hold decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from tandem.routing.decision import Verdict
from tandem.routing.features import RouteFeatures
from tandem.routing.intents import Lexicon


class Prompt:
    """The features of one request, and its leading intent, looked up once and only if a rule asks for it."""

    def __init__(self, features: RouteFeatures, lexicon: Lexicon) -> None:
        self.features = features
        self._lexicon = lexicon

    @cached_property
    def intent(self) -> str | None:
        return self._lexicon.leading_intent(self.features.text)


class Condition(Protocol):
    """One thing that must hold for a rule."""

    def evidence(self, prompt: Prompt) -> str | None:
        """What makes it hold, such as ``task=extraction`` (never text of a user), or None when it does not hold."""
        ...


@dataclass(frozen=True, slots=True)
class TagIn:
    """A tag of the request (task, api_path, source, language) is one of ``allowed``, which are in lower case."""

    feature: str
    allowed: frozenset[str]

    def evidence(self, prompt: Prompt) -> str | None:
        tag = str(getattr(prompt.features, self.feature)).strip().lower()
        return f"{self.feature}={tag}" if tag in self.allowed else None


@dataclass(frozen=True, slots=True)
class IntentIn:
    """The leading intent of the prompt is one of ``allowed``."""

    allowed: frozenset[str]

    def evidence(self, prompt: Prompt) -> str | None:
        return f"intent={prompt.intent}" if prompt.intent in self.allowed else None


@dataclass(frozen=True, slots=True)
class FlagIs:
    """A yes-or-no feature (has_code, has_arithmetic) has the value ``wanted``."""

    feature: str
    wanted: bool

    def evidence(self, prompt: Prompt) -> str | None:
        if getattr(prompt.features, self.feature) is not self.wanted:
            return None
        return f"{self.feature}={'yes' if self.wanted else 'no'}"


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A count (num_prompt_tokens, num_turns) is not below ``low``."""

    feature: str
    low: int

    def evidence(self, prompt: Prompt) -> str | None:
        count = getattr(prompt.features, self.feature)
        return f"{self.feature}={count}" if count >= self.low else None


@dataclass(frozen=True, slots=True)
class AtMost:
    """A count (num_prompt_tokens, num_turns) is not above ``high``."""

    feature: str
    high: int

    def evidence(self, prompt: Prompt) -> str | None:
        count = getattr(prompt.features, self.feature)
        return f"{self.feature}={count}" if count <= self.high else None


@dataclass(frozen=True, slots=True)
class Rule:
    """``name`` is the reason code that decisions carry; ``when`` holds at least one condition."""

    name: str
    when: tuple[Condition, ...]
    engine: str

    def evidence(self, prompt: Prompt) -> str | None:
        """What makes every condition hold, or None when some condition does not."""
        held = []
        for condition in self.when:
            found = condition.evidence(prompt)
            if found is None:
                return None
            held.append(found)
        return ",".join(held)


class ExplicitStage:
    """The caller names the path (the ``model`` of the API, or the ``path`` tensor): nothing else is asked."""

    name = "explicit"

    def __init__(self, engines: Mapping[str, str]) -> None:
        """``engines``: path name -> engine."""
        self._engines = dict(engines)

    def decide(self, features: RouteFeatures) -> Verdict | None:
        engine = self._engines.get(features.path)
        return None if engine is None else Verdict(engine, "path", f"path={features.path}")


class RulesStage:
    """The rules of the YAML file. Immutable and thread-safe."""

    name = "rules"

    def __init__(self, rules: Sequence[Rule], lexicon: Lexicon) -> None:
        self._rules = tuple(rules)
        self._lexicon = lexicon

    def decide(self, features: RouteFeatures) -> Verdict | None:
        prompt = Prompt(features, self._lexicon)
        for rule in self._rules:
            evidence = rule.evidence(prompt)
            if evidence is not None:
                return Verdict(rule.engine, rule.name, evidence)
        return None
