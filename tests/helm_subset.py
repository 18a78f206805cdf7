"""Renders the chart of deploy/helm without Helm: the few constructs of Go templates that it uses, and an error for any other.

``if``, ``else``, ``with``, ``end``; ``.Values`` and ``.Release`` paths; ``.Files.Get``, ``eq``, ``ne``, ``add``, ``div``,
``required``, ``toYaml``, ``nindent``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_TAG = re.compile(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.DOTALL)
_WORD = re.compile(r'"[^"]*"|\S+')


class ChartError(Exception):
    """What ``required`` says, or a construct that is not of the subset."""


def render(template: str, values: Mapping[str, Any], chart: Path, release: str = "tandem") -> list[Any]:
    """The documents of one template of ``chart``, parsed."""
    root = {"Values": values, "Release": {"Name": release}, "chart": chart}
    text, _ = _block(_tokens(template), 0, root, root)
    return [document for document in yaml.safe_load_all(text) if document is not None]


def _tokens(template: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    position, trims_left = 0, False
    for match in _TAG.finditer(template):
        text = template[position : match.start()]
        text = text.lstrip() if trims_left else text
        tokens.append(("text", text.rstrip() if match[1] else text))
        tokens.append(("tag", match[2]))
        position, trims_left = match.end(), bool(match[3])
    tail = template[position:]
    tokens.append(("text", tail.lstrip() if trims_left else tail))
    return tokens


def _block(tokens: list[tuple[str, str]], index: int, dot: Any, root: Any, *, is_live: bool = True) -> tuple[str, int]:
    """Text up to the matching else or end, and the index of that tag."""
    out: list[str] = []
    while index < len(tokens):
        kind, text = tokens[index]
        word, _, rest = text.partition(" ")
        if kind == "text":
            out.append(text)
        elif word in ("else", "end"):
            return "".join(out), index
        elif word in ("if", "with"):
            rendered, index = _branch(tokens, index, word, rest, dot, root, is_live=is_live)
            out.append(rendered)
        elif is_live:
            value = _evaluate(text.partition(":=")[2] if text.startswith("$_ :=") else text, dot, root)
            out.append("" if text.startswith("$_ :=") else _plain(value))
        index += 1
    return "".join(out), index


def _branch(
    tokens: list[tuple[str, str]], index: int, word: str, condition: str, dot: Any, root: Any, *, is_live: bool
) -> tuple[str, int]:
    value = _evaluate(condition, dot, root) if is_live else None
    takes_first = is_live and bool(value)
    inner = value if word == "with" and takes_first else dot
    first, index = _block(tokens, index + 1, inner, root, is_live=takes_first)
    second = ""
    if tokens[index][1] == "else":
        second, index = _block(tokens, index + 1, dot, root, is_live=is_live and not takes_first)
    if tokens[index][1] != "end":
        raise ChartError(f"no end of {word} {condition}")
    return (first if takes_first else second if is_live else ""), index


def _evaluate(text: str, dot: Any, root: Any) -> Any:
    value: Any = None
    for number, stage in enumerate(text.split("|")):
        words = _WORD.findall(stage.strip())
        if number:
            words.append(None)  # what came through the pipe
        value = _call(words, value, dot, root)
    return value


def _call(words: list[Any], piped: Any, dot: Any, root: Any) -> Any:
    name = words[0]
    arguments = [piped if word is None else _operand(word, dot, root) for word in words[1:]]
    if name == "required":
        if arguments[1] in ("", None):
            raise ChartError(arguments[0])
        return arguments[1]
    if name == ".Files.Get":
        text: str = (root["chart"] / arguments[0]).read_text()
        return text
    functions = {
        "eq": lambda a, b: a == b,
        "ne": lambda a, b: a != b,
        "add": lambda a, b: int(a) + int(b),
        "div": lambda a, b: int(a) // int(b),
        "toYaml": lambda value: yaml.safe_dump(value, default_flow_style=False).rstrip("\n"),
        "nindent": lambda count, value: "\n" + "\n".join(" " * count + line for line in value.splitlines()),
    }
    if name in functions:
        return functions[name](*arguments)
    if arguments:
        raise ChartError(f"{name} is not of the subset")
    return _operand(name, dot, root)


def _operand(word: str, dot: Any, root: Any) -> Any:
    if word.startswith('"'):
        return word[1:-1]
    if re.fullmatch(r"\d+", word):
        return int(word)
    if word == ".":
        return dot
    if not word.startswith("."):
        raise ChartError(f"{word} is not of the subset")
    value = root
    for key in word[1:].split("."):
        if key not in value:
            raise ChartError(f"values.yaml has no {word}")
        value = value[key]
    return value


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
