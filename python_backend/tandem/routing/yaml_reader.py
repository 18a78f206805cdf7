"""A YAML file read with its line numbers, so that every complaint can say where and what to do."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import yaml

from tandem.errors import SetupError, quote

_STRING, _INT, _BOOL = "tag:yaml.org,2002:str", "tag:yaml.org,2002:int", "tag:yaml.org,2002:bool"
_FLOAT = "tag:yaml.org,2002:float"


class YamlNode:
    """One value of a YAML file. Its readers check the type; all of them raise SetupError naming file, line and remedy."""

    def __init__(self, node: yaml.Node, origin: str, line: int | None = None) -> None:
        """``line``: where to point at, from 0; that of a key is of more help than that of the value under it."""
        self._node = node
        self._origin = origin
        self._line = int(node.start_mark.line) if line is None else line

    @classmethod
    def parse(cls, text: str, origin: str) -> YamlNode:
        """``origin``: the file's name for messages."""
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
            raise SetupError(f"{origin}, line {line}: {error.problem}; mend the YAML") from error
        except yaml.YAMLError as error:
            raise SetupError(f"{origin}: {' '.join(str(error).split())}; mend the YAML") from error
        if node is None:
            raise SetupError(f"{origin}, line 1: the file is empty; start from the default file")
        return cls(node, origin)

    def error(self, problem: str, remedy: str) -> SetupError:
        return SetupError(f"{self._origin}, line {self._line + 1}: {problem}; {remedy}")

    def mapping(self, *, required: Iterable[str] = (), optional: Iterable[str] = ()) -> dict[str, YamlNode]:
        """A mapping with all of ``required`` and nothing besides ``optional``."""
        entries = self.free_mapping()
        required, known = list(required), [*required, *optional]
        for key, node in entries.items():
            if key not in known:
                raise node.error(f"unknown key {quote(key)}", f"known here: {', '.join(known)}")
        for key in required:
            if key not in entries:
                raise self.error(f"{key} is missing", f"add {key}")
        return entries

    def free_mapping(self) -> dict[str, YamlNode]:
        """A mapping with keys of the user's choice."""
        if not isinstance(self._node, yaml.MappingNode):
            raise self.error(f"got {self._kind()}", "give a mapping (key: value)")
        entries: dict[str, YamlNode] = {}
        for key_node, value_node in self._node.value:
            key = YamlNode(key_node, self._origin)
            name = key.text()
            if name in entries:
                raise key.error(f"{quote(name)} stands here twice", "keep one of them")
            entries[name] = YamlNode(value_node, self._origin, key_node.start_mark.line)
        return entries

    def sequence(self) -> list[YamlNode]:
        """A list with at least one entry."""
        if not isinstance(self._node, yaml.SequenceNode):
            raise self.error(f"got {self._kind()}", "give a list ([a, b])")
        if not self._node.value:
            raise self.error("got an empty list", "give at least one entry or leave the key out")
        return [YamlNode(node, self._origin) for node in self._node.value]

    @property
    def is_text(self) -> bool:
        return isinstance(self._node, yaml.ScalarNode) and self._node.tag == _STRING

    def text(self, pattern: str = r"(?s).+") -> str:
        """A string that ``pattern`` matches as a whole."""
        value = self._scalar(_STRING, "a string (in quotes if it looks like a number)")
        if re.fullmatch(pattern, value) is None:
            raise self.error(f"got {quote(value)}", f"give text of the form {pattern}")
        return value

    def one_of(self, known: Iterable[str]) -> str:
        """A string out of ``known``."""
        value, known = self.text(), list(known)
        if value not in known:
            raise self.error(f"got {quote(value)}", f"use one of {', '.join(known)}")
        return value

    def count(self) -> int:
        """A whole number of at least 0."""
        value = int(self._scalar(_INT, "a whole number"), 0)
        if value < 0:
            raise self.error(f"got {value}", "give a whole number of at least 0")
        return value

    def number(self, low: float, high: float) -> float:
        """A number from ``low`` to ``high``; never NaN or infinite."""
        is_number = isinstance(self._node, yaml.ScalarNode) and self._node.tag in (_INT, _FLOAT)
        try:
            value = float(self._node.value) if is_number else math.nan
        except ValueError:  # other spellings of YAML: 0x10, 1_000, .inf
            value = math.nan
        if not (math.isfinite(value) and low <= value <= high):
            raise self.error(f"got {self._kind()}", f"give a number from {low:g} to {high:g}")
        return value

    def flag(self) -> bool:
        return self._scalar(_BOOL, "true or false").lower() in ("true", "yes", "on")

    def _scalar(self, tag: str, wanted: str) -> str:
        if not isinstance(self._node, yaml.ScalarNode) or self._node.tag != tag:
            raise self.error(f"got {self._kind()}", f"give {wanted}")
        return str(self._node.value)

    def _kind(self) -> str:
        if isinstance(self._node, yaml.ScalarNode):
            return quote(self._node.value) if self._node.value else "nothing"
        return "a list" if isinstance(self._node, yaml.SequenceNode) else "a mapping"
