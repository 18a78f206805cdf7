"""The training prompts of the shipped route head: templates and slot values of our own, filled in a reproducible way.

A template keeps one label whatever fills its slots. Its prompts stay together: all of them train, or all of them are held out. The
held-out templates have slot values of their own too (every third one), so that no paraphrase of a training prompt is among them:
"Prove that X" and "Give a rigorous proof of X" never meet across the border with the same X.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent / "route_prompts"
LANGUAGES = ("en", "zh")
PROMPTS_PER_TEMPLATE = 6
_HELD_OUT_EVERY, _HELD_OUT_PLACE = 5, 2
_SLOT = re.compile(r"\{(\w+)\}")


def training_rows() -> list[dict[str, Any]]:
    """One row per prompt, as ``tandem route train --data`` reads them: prompt, task, fast, language, template, held_out."""
    return [row for language in LANGUAGES for row in _rows(language)]


def _rows(language: str) -> Iterator[dict[str, Any]]:
    slots = _read(f"slots_{language}.yaml")
    seen: set[str] = set()
    for task, labels in _read(f"prompts_{language}.yaml").items():
        for label, templates in labels.items():
            # Every fifth template of a kind is held out, in the order of their hashes, so that each kind is in both parts.
            ordered = sorted(templates, key=_digest)
            for number, template in enumerate(ordered):
                identity = f"{language}-{task}-{label}-{_digest(template):08x}"
                is_held_out = number % _HELD_OUT_EVERY == _HELD_OUT_PLACE
                for prompt in _fill(template, {name: _part(values, is_held_out) for name, values in slots.items()}):
                    if prompt not in seen:
                        seen.add(prompt)
                        yield {
                            "prompt": prompt,
                            "task": task,
                            "fast": label == "fast",
                            "language": language,
                            "template": identity,
                            "held_out": is_held_out,
                        }


def _part(values: list[Any], is_held_out: bool) -> list[Any]:
    return [value for number, value in enumerate(values) if (number % 3 == 2) is is_held_out]


def _fill(template: str, slots: Mapping[str, list[Any]]) -> Iterator[str]:
    """Different prompts of one template; one when it has no slots. A slot that occurs twice gets two values."""
    rng = random.Random(_digest(template))  # noqa: S311  (repeatable, not secret)
    names = _SLOT.findall(template)
    pools = {name: rng.sample(slots[name], len(slots[name])) for name in sorted(set(names))}
    for round_number in range(PROMPTS_PER_TEMPLATE if names else 1):
        used = {name: round_number * names.count(name) - 1 for name in pools}

        def value(match: re.Match[str], used: dict[str, int] = used) -> str:
            pool = pools[match[1]]
            used[match[1]] += 1
            return str(pool[used[match[1]] % len(pool)])

        yield _SLOT.sub(value, template)


def _digest(text: str) -> int:
    return zlib.crc32(text.encode())


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return content
