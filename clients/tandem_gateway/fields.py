"""Fields of the OpenAI API that this server knows but does not offer, and those that change nothing.

The one table behind docs/api.md. A field stands here with the values that mean "off"; those are accepted because the answer is the
same without the field. Any other value is refused, never ignored. Fields that are neither here nor in the schema are unknown: 400.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tandem.errors import Unsupported


@dataclass(frozen=True, slots=True)
class Neutral:
    """A field that is taken out of the request when ``accepts(value)``, and refused with ``remedy`` otherwise."""

    accepts: Callable[[Any], bool]
    remedy: str


def _only(*values: Any) -> Callable[[Any], bool]:
    # Type and value: True must not pass for 1.
    return lambda value: value is None or any(type(value) is type(item) and value == item for item in values)


def _short_text(value: Any) -> bool:
    return value is None or (isinstance(value, str) and len(value) <= 512)


_OLD_TOOLS = "leave it out: use tools and tool_choice, which have taken its place"
_NO_AUDIO = "leave it out: only text is offered"

COMMON: dict[str, Neutral] = {
    # Accepted for any value of the right form, because it is for the provider's bookkeeping only.
    "user": Neutral(_short_text, "give a text of at most 512 characters"),
    "safety_identifier": Neutral(_short_text, "give a text of at most 512 characters"),
    "prompt_cache_key": Neutral(_short_text, "give a text of at most 512 characters"),
    # Accepted when off.
    "service_tier": Neutral(_only("auto", "default"), "use auto or default"),
    "priority": Neutral(_only(0), "leave it out or give 0: priorities are not offered by this version"),
    "prompt_cache_retention": Neutral(_only("in_memory"), "leave it out: cached prompts live in memory only"),
}

CHAT: dict[str, Neutral] = {
    **COMMON,
    "store": Neutral(_only(False), "use false: answers are never stored"),
    "functions": Neutral(_only([]), _OLD_TOOLS),
    "function_call": Neutral(_only("none", "auto"), _OLD_TOOLS),
    "modalities": Neutral(_only(["text"]), _NO_AUDIO),
    "audio": Neutral(_only(), _NO_AUDIO),
    "prediction": Neutral(_only(), "leave it out: predicted outputs are not offered"),
    "reasoning_effort": Neutral(_only("none"), "leave it out: the models have no reasoning mode"),
    "verbosity": Neutral(_only("medium"), "leave it out: say in the prompt how long the answer shall be"),
    "web_search_options": Neutral(_only(), "leave it out: nothing is fetched from the web"),
    "moderation": Neutral(_only(), "leave it out: moderation is not offered"),
    "prompt_cache_options": Neutral(_only(), "leave it out: cached prompts live in memory only"),
}

COMPLETION: dict[str, Neutral] = {
    **COMMON,
    "echo": Neutral(_only(False), "use false: the prompt is not repeated"),
    "suffix": Neutral(_only(""), "leave it out: the models cannot fill in the middle"),
}


def take_out_neutral(payload: dict[str, Any], table: dict[str, Neutral]) -> dict[str, Any]:
    """The payload without the fields of ``table``. Raises: Unsupported for the first one whose value asks for something."""
    kept = {}
    for name, value in payload.items():
        rule = table.get(name)
        if rule is None:
            kept[name] = value
        elif not rule.accepts(value):
            raise Unsupported(name, value, rule.remedy)
    return kept
