"""EBNF in the dialect of GBNF and xgrammar, read with the line of every mistake.

::

    root  ::= item ("," item)*     # the answer; a comment ends with the line
    item  ::= [a-z]+ | "\\"" [^"]{1,20} "\\""

Rules have names of letters, digits, ``_`` and ``-``. Strings and classes know the escapes
``\\n \\r \\t \\\\ \\" \\xHH \\uHHHH \\UHHHHHHHH``, and a backslash before any other sign is that sign. ``.`` is any character.
A rule ends where the next ``name ::=`` begins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from tandem.guided.errors import GuideError, UnsupportedGuide
from tandem.guided.limits import GuideLimits

ROOT = "root"

_BLANK = re.compile(r"(?:\s|#[^\n]*)+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_ASSIGN = re.compile(r"(?:\s|#[^\n]*)*::=")
_COUNTED = re.compile(r"\{\s*(\d{1,9})\s*(?:(,)\s*(\d{1,9})?\s*)?\}")
_SIMPLE_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
_HEX = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True)
class Text:
    value: str


@dataclass(frozen=True)
class CharClass:
    """Ranges of code points, both ends included. ``.`` is a negated class without ranges."""

    is_negated: bool
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class RuleRef:
    name: str
    line: int


@dataclass(frozen=True)
class Repeat:
    """``high`` None: without end."""

    item: Node
    low: int
    high: int | None


@dataclass(frozen=True)
class Group:
    """``all``: one after another, ``any``: alternatives."""

    kind: Literal["all", "any"]
    items: tuple[Node, ...]


Node = Text | CharClass | RuleRef | Repeat | Group


@dataclass
class Rule:
    name: str
    line: int
    body: Node


@dataclass
class EbnfReader:
    """Reads one grammar. Raises: GuideError with line and rule, UnsupportedGuide."""

    text: str
    limits: GuideLimits
    position: int = 0
    depth: int = 0
    rules: dict[str, Rule] = field(default_factory=dict)

    def read(self) -> dict[str, Rule]:
        self._skip()
        while self.position < len(self.text):
            rule = self._rule()
            if rule.name in self.rules:
                self._refuse(rule.name, f"the rule is already defined on line {self.rules[rule.name].line}", rule.line)
            if len(self.rules) >= self.limits.max_rules:
                self._refuse(rule.name, f"at most {self.limits.max_rules} rules are taken", rule.line)
            self.rules[rule.name] = rule
        if ROOT not in self.rules:
            raise GuideError("line 1", "a grammar without a rule root", "name the rule that is the whole answer root")
        return self.rules

    def _rule(self) -> Rule:
        line = self._line()
        name = _NAME.match(self.text, self.position)
        assigned = None if name is None else _ASSIGN.match(self.text, name.end())
        if name is None or assigned is None:
            self._refuse(self.text[self.position : self.position + 20], "a rule begins with name ::=")
        self.position = assigned.end()
        self._skip()
        return Rule(name.group(), line, self._alternatives(name.group()))

    def _alternatives(self, rule: str) -> Node:
        items = [self._sequence(rule)]
        while self._peek() == "|":
            self.position += 1
            self._skip()
            items.append(self._sequence(rule))
        return items[0] if len(items) == 1 else Group("any", tuple(items))

    def _sequence(self, rule: str) -> Node:
        items: list[Node] = []
        while (item := self._item(rule)) is not None:
            self._skip()
            items.append(self._repeated(item))
        return items[0] if len(items) == 1 else Group("all", tuple(items))

    def _item(self, rule: str) -> Node | None:
        char = self._peek()
        if char == '"':
            return Text(self._string(rule))
        if char == "[":
            return self._char_class(rule)
        if char == "(":
            return self._group(rule)
        if char == ".":
            self.position += 1
            return CharClass(True, ())
        name = _NAME.match(self.text, self.position)
        if name is not None:
            if _ASSIGN.match(self.text, name.end()):
                return None  # the next rule
            line, self.position = self._line(), name.end()
            return RuleRef(name.group(), line)
        if char in ("", "|", ")") and not (char == ")" and self.depth == 0):
            return None
        self._refuse(char, f"nothing in the rule {rule} can begin with it")

    def _group(self, rule: str) -> Node:
        line = self._line()
        if self.text.startswith("(=", self.position):
            raise UnsupportedGuide(f"line {line}", f"rule {rule}: (=", "lookahead is not supported")
        if self.depth >= self.limits.max_group_depth:
            self._refuse("(", f"groups may nest {self.limits.max_group_depth} deep")
        self.position += 1
        self.depth += 1
        self._skip()
        node = self._alternatives(rule)
        self.depth -= 1
        if self._peek() != ")":
            self._refuse(f"rule {rule}", "a group is not closed with )", line)
        self.position += 1
        return node

    def _repeated(self, item: Node) -> Node:
        """The item under its quantifier, if one follows."""
        char = self._peek()
        counted = _COUNTED.match(self.text, self.position) if char == "{" else None
        if char in ("*", "+", "?"):
            item = Repeat(item, int(char == "+"), 1 if char == "?" else None)
            self.position += 1
        elif counted is not None:
            item = self._counted(item, counted)
        elif char == "{":
            self._refuse(self.text[self.position : self.position + 12], "write a count as {2}, {2,} or {2,5}")
        self._skip()
        if isinstance(item, Repeat) and self._peek() in ("*", "+", "?", "{"):
            self._refuse(self._peek(), "one item takes one quantifier; put the first into a group")
        return item

    def _counted(self, item: Node, counted: re.Match[str]) -> Node:
        low = int(counted[1])
        high = (int(counted[3]) if counted[3] else None) if counted[2] else low
        if max(low, high or 0) > self.limits.max_repetition or (high is not None and high < low):
            self._refuse(counted[0], f"give ascending counts of at most {self.limits.max_repetition}")
        self.position = counted.end()
        return Repeat(item, low, high)

    def _string(self, rule: str) -> str:
        line, chars = self._line(), []
        self.position += 1
        while (char := self._peek()) != '"':
            if char in ("", "\n"):
                self._refuse(f"rule {rule}", 'a string is not closed with "', line)
            chars.append(self._char())
        self.position += 1
        if sum(len(c.encode("utf-8", "surrogatepass")) for c in chars) > self.limits.max_literal_bytes:
            self._refuse(f"rule {rule}", f"a string may have {self.limits.max_literal_bytes} bytes", line)
        return "".join(chars)

    def _char_class(self, rule: str) -> CharClass:
        line, ranges = self._line(), []
        self.position += 1
        is_negated = self._peek() == "^"
        self.position += is_negated
        while (char := self._peek()) != "]":
            if char in ("", "\n"):
                self._refuse(f"rule {rule}", "a class is not closed with ]", line)
            low = high = ord(self._char())
            if self._peek() == "-" and self.text[self.position + 1 : self.position + 2] not in ("]", ""):
                self.position += 1
                high = ord(self._char())
            if high < low:
                self._refuse(f"rule {rule}", "a range of characters runs backwards", line)
            ranges.append((low, high))
        self.position += 1
        if not ranges and not is_negated:
            self._refuse(f"rule {rule}", "an empty class matches nothing", line)
        return CharClass(is_negated, tuple(ranges))

    def _char(self) -> str:
        """One character of a string or class, escapes read."""
        char = self.text[self.position]
        self.position += 1
        if char != "\\":
            return char
        kind = self._peek()
        self.position += 1
        if kind in _HEX:
            digits = self.text[self.position : self.position + _HEX[kind]]
            value = int(digits, 16) if re.fullmatch(r"[0-9A-Fa-f]+", digits) and len(digits) == _HEX[kind] else -1
            if not 0 <= value <= 0x10FFFF or 0xD800 <= value <= 0xDFFF:
                self._refuse(f"\\{kind}{digits}", f"give {_HEX[kind]} hexadecimal digits of a character")
            self.position += len(digits)
            return chr(value)
        if (kind.isalnum() and kind not in _SIMPLE_ESCAPES) or not kind:
            self._refuse(f"\\{kind}", "this escape is not known")
        return _SIMPLE_ESCAPES.get(kind, kind)

    def _peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def _skip(self) -> None:
        blank = _BLANK.match(self.text, self.position)
        if blank is not None:
            self.position = blank.end()

    def _line(self) -> int:
        return self.text.count("\n", 0, self.position) + 1

    def _refuse(self, what: str, remedy: str, line: int | None = None) -> NoReturn:
        raise GuideError(f"line {self._line() if line is None else line}", what, remedy)
