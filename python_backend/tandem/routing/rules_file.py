"""The one YAML file behind the rules: read, checked as a whole, turned into a policy. Format: ``default_rules.yaml``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import resources
from pathlib import Path as FilePath
from typing import get_args

from tandem.errors import SetupError
from tandem.routing.decision import goes_slow
from tandem.routing.features import Language
from tandem.routing.intents import Lexicon, Phrases, normalize
from tandem.routing.policy import PolicyTerms, RoutingPolicy
from tandem.routing.rules import AtLeast, AtMost, Condition, FlagIs, IntentIn, Rule, RulesStage, TagIn
from tandem.routing.settings import Settings, read_settings
from tandem.routing.stages import PlannedStage
from tandem.routing.yaml_reader import YamlNode
from tandem.types import Path

VERSION = 1
_SLUG = r"[a-z0-9_.-]{1,60}"
_API_PATH = r"/[a-z0-9_./-]{1,100}"

StageBuilder = Callable[[Settings], Sequence[PlannedStage]]
"""Makes the stages that are asked after the rules, in their order."""


def load_policy(rules_file: FilePath | None = None, build: StageBuilder | None = None) -> RoutingPolicy:
    """Build the router's policy from ``rules_file``, or from the file shipped with the package.

    ``build``: makes the stages after the rules; None: there are none, whatever the file says.
    Raises: SetupError naming file, line and remedy.
    """
    if rules_file is None:
        resource = resources.files("tandem.routing").joinpath("default_rules.yaml")
        return parse_policy(resource.read_text(encoding="utf-8"), "default_rules.yaml", build)
    try:
        text = rules_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{rules_file} can't be read ({error}); name a rules file or none for the default") from error
    return parse_policy(text, str(rules_file), build)


def parse_policy(text: str, origin: str, build: StageBuilder | None = None) -> RoutingPolicy:
    """As :func:`load_policy`, from the text of the file; ``origin`` names it in messages."""
    root = YamlNode.parse(text, origin).mapping(
        required=("version", "engines", "explicit", "default", "intents", "rules"),
        optional=("threshold", "stages", "load", "sessions"),
    )
    if root["version"].count() != VERSION:
        raise root["version"].error(f"got version {root['version'].count()}", f"this program reads version {VERSION}")
    paths = {name: Path(node.one_of(path.value for path in Path)) for name, node in root["engines"].free_mapping().items()}
    explicit = _explicit(root["explicit"], paths)
    default = root["default"].one_of(paths)
    settings = read_settings(root, paths)
    intents = _intents(root["intents"])
    rules = [_rule(node, paths, intents, settings) for node in root["rules"].sequence()]
    for index, rule in enumerate(rules):
        if any(rule.name == other.name for other in rules[:index]):
            raise root["rules"].sequence()[index].error(f"the name {rule.name} is taken", "give each rule its own name")
    stages = list(build(settings)) if build is not None else []
    if settings.rules.is_enabled:
        stages.insert(0, PlannedStage(RulesStage(rules, Lexicon(intents), settings.rules.scores), settings.rules.unsure))
    terms = PolicyTerms(
        paths=paths,
        explicit=explicit,
        default=default,
        threshold=settings.threshold,
        slo=settings.load.slo,
        margin=settings.load.margin,
        has_load=settings.load.is_enabled,
        has_sessions=settings.sessions.is_enabled,
    )
    fingerprint = hashlib.sha256(text.encode()).hexdigest()[:16]
    return RoutingPolicy(terms, stages, settings, fingerprint=fingerprint)


def _explicit(node: YamlNode, paths: Mapping[str, Path]) -> dict[str, str]:
    entries = node.mapping(required=[path.value for path in Path])
    return {name: entry.one_of([engine for engine, path in paths.items() if path.value == name]) for name, entry in entries.items()}


def _intents(node: YamlNode) -> dict[str, Phrases]:
    owners: dict[str, str] = {}
    intents: dict[str, Phrases] = {}
    for name, entry in node.free_mapping().items():
        languages = entry.mapping(required=("english", "chinese"))
        intents[name] = Phrases(
            english=_phrases(languages["english"], r"[A-Za-z0-9].*", name, owners),
            chinese=_phrases(languages["chinese"], r"\S.*", name, owners),
        )
    return intents


def _phrases(node: YamlNode, pattern: str, intent: str, owners: dict[str, str]) -> tuple[str, ...]:
    """The phrases of one language. Modifies: ``owners``, phrase -> intent, by which a phrase in two intents is found."""
    phrases = []
    for entry in node.sequence():
        phrase = entry.text(pattern)
        owner = owners.setdefault(normalize(phrase), intent)
        if owner != intent:
            raise entry.error(f"{phrase} stands in {owner} and in {intent}", "keep one of them")
        phrases.append(phrase)
    return tuple(phrases)


def _rule(node: YamlNode, paths: Mapping[str, Path], intents: Collection[str], settings: Settings) -> Rule:
    entries = node.mapping(required=("name", "when", "engine"), optional=("score",))
    readers = _condition_readers(intents)
    conditions = [(key, readers[key](entry)) for key, entry in entries["when"].mapping(optional=readers).items()]
    if not conditions:
        raise entries["when"].error("a rule without conditions", f"give at least one of {', '.join(readers)}")
    # In the order of the table, which is the order of their cost.
    conditions.sort(key=lambda item: list(readers).index(item[0]))
    engine = entries["engine"].one_of(paths)
    score = entries["score"].number(0.0, 1.0) if "score" in entries else settings.rules.score_of(paths[engine])
    if goes_slow(score, settings.threshold) is not (paths[engine] is Path.SLOW):
        raise node.error(
            f"the rule names {engine}, but with the score {score:g} and the threshold {settings.threshold:g} it goes the other way",
            "give it a score on its own side",
        )
    return Rule(entries["name"].text(_SLUG), tuple(condition for _, condition in conditions), engine, score)


def _condition_readers(intents: Collection[str]) -> dict[str, Callable[[YamlNode], Condition]]:
    """Key under ``when`` -> how its value becomes a condition; the cheapest conditions first."""

    def tags(feature: str, pattern: str) -> Callable[[YamlNode], Condition]:
        return lambda node: TagIn(feature, frozenset(entry.text(pattern) for entry in node.sequence()))

    return {
        "task": tags("task", _SLUG),
        "api_path": tags("api_path", _API_PATH),
        "source": tags("source", _SLUG),
        "language": lambda node: TagIn("language", frozenset(entry.one_of(get_args(Language)) for entry in node.sequence())),
        "has_code": lambda node: FlagIs("has_code", node.flag()),
        "has_arithmetic": lambda node: FlagIs("has_arithmetic", node.flag()),
        "min_prompt_tokens": lambda node: AtLeast("num_prompt_tokens", node.count()),
        "max_prompt_tokens": lambda node: AtMost("num_prompt_tokens", node.count()),
        "min_turns": lambda node: AtLeast("num_turns", node.count()),
        "intent": lambda node: IntentIn(frozenset(entry.one_of(intents) for entry in node.sequence())),
    }
