"""Ordered rules: the first one whose conditions all hold gives the score. The first stage of a decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from tandem.routing.features import RouteFeatures
from tandem.routing.intents import Lexicon
from tandem.routing.stages import Cutoff, Opinion, Question


class Prompt:
    """The features of one request, and the intents of its text, looked up once and only if a rule asks for them."""

    def __init__(self, features: RouteFeatures, lexicon: Lexicon) -> None:
        self.features = features
        self._lexicon = lexicon

    @cached_property
    def intents(self) -> tuple[str, ...]:
        """In the order in which they stand in the text."""
        return self._lexicon.intents(self.features.text)

    @property
    def intent(self) -> str | None:
        """The leading one."""
        return self.intents[0] if self.intents else None


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
    """``name`` is the reason code that decisions carry; ``when`` holds at least one condition.

    ``score``: the probability that the fast path suffices when the rule holds. ``engine``: which one, on its path.
    """

    name: str
    when: tuple[Condition, ...]
    engine: str
    score: float

    def evidence(self, prompt: Prompt) -> str | None:
        """What makes every condition hold, or None when some condition does not."""
        held = []
        for condition in self.when:
            found = condition.evidence(prompt)
            if found is None:
                return None
            held.append(found)
        return ",".join(held)

    @property
    def intents(self) -> frozenset[str]:
        """The intents of which it needs one; empty when it does not look at the text."""
        return frozenset().union(*(condition.allowed for condition in self.when if isinstance(condition, IntentIn)))


@dataclass(frozen=True, slots=True)
class RuleScores:
    """``prior``: the score when no rule holds. A rule that a keyword decides is **contested** when the text also holds an intent
    of the other side; its score is then drawn to the middle, ``contested_weight`` (0 to 1) of the way, so that a word more or
    less can't decide alone.
    """

    prior: float = 0.6
    contested_weight: float = 0.75


class RulesStage:
    """The rules of the YAML file. Immutable and thread-safe."""

    name = "rules"

    def __init__(self, rules: Sequence[Rule], lexicon: Lexicon, scores: RuleScores) -> None:
        self._rules = tuple(rules)
        self._lexicon = lexicon
        self._scores = scores
        # Intent -> on which side of the middle the first rule for it stands.
        self._is_light: dict[str, bool] = {}
        for rule in self._rules:
            for intent in rule.intents:
                if len(rule.when) == 1:
                    self._is_light.setdefault(intent, rule.score > 0.5)

    def ask(self, question: Question, budget_ms: float, cutoff: Cutoff) -> Opinion:
        """The first rule that holds, or the prior. Takes less than its share of any budget; raises nothing a prompt could cause."""
        prompt = Prompt(question.features, self._lexicon)
        for rule in self._rules:
            evidence = rule.evidence(prompt)
            if evidence is not None:
                return self._opinion(rule, evidence, prompt)
        return Opinion(self._scores.prior, "default", "default")

    def _opinion(self, rule: Rule, evidence: str, prompt: Prompt) -> Opinion:
        is_light = rule.score > 0.5
        rivals = [name for name in prompt.intents if self._is_light.get(name, is_light) is not is_light] if rule.intents else []
        if not rivals:
            return Opinion(rule.score, rule.name, evidence, rule.engine)
        score = rule.score + (0.5 - rule.score) * self._scores.contested_weight
        return Opinion(score, rule.name, f"{evidence},against={rivals[0]}", rule.engine)
