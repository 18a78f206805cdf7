"""Rules of an EBNF grammar to llguidance's Lark form.

A grammar without recursion is one regular expression, and exact. In a recursive one each rule that does not lead back to itself
becomes a terminal: it takes the longest text that it can, as the tokens of a parser do. That may leave out a text that another
split would allow; it never lets one through that the grammar does not have. Left recursion is fine (Earley's algorithm).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tandem.guided.ebnf import ROOT, CharClass, EbnfReader, Group, Node, Repeat, Rule, RuleRef, Text
from tandem.guided.errors import GuideError
from tandem.guided.limits import GuideLimits


def ebnf_to_lark(text: str, limits: GuideLimits) -> str:
    """Raises: GuideError with line and rule, UnsupportedGuide."""
    rules = EbnfReader(text, limits).read()
    _check_names(rules)
    _check_finite(rules)
    plain = _plain(rules)
    _check_size(rules, plain, limits)
    # Lark tells rules and terminals apart by case; the names themselves are of no account.
    names = {name: f"T{i}" if name in plain else f"r{i}" for i, name in enumerate(rules)}
    lines = ["%llguidance {}", f"start: {names[ROOT]}"]
    for name, rule in rules.items():
        lines.append(f"{names[name]}: {_lark(rule.body, names)}")
    return "\n".join(lines)


def _check_names(rules: Mapping[str, Rule]) -> None:
    for rule in rules.values():
        for reference in _references(rule.body):
            if reference.name not in rules:
                raise GuideError(f"line {reference.line}", f"{reference.name} in the rule {rule.name}", "no rule has this name")


def _check_finite(rules: Mapping[str, Rule]) -> None:
    """Each rule must have a finite text; a least fixed point, as in :mod:`tandem.guided.schema_values`."""
    finite: set[str] = set()
    has_grown = True
    while has_grown:
        grown = {rule.name for rule in rules.values() if rule.name not in finite and _is_finite(rule.body, finite)}
        finite |= grown
        has_grown = bool(grown)
    for rule in rules.values():
        if rule.name not in finite:
            raise GuideError(f"line {rule.line}", f"the rule {rule.name}", "it never ends; give it an alternative without itself")


def _is_finite(node: Node, finite: set[str]) -> bool:
    if isinstance(node, RuleRef):
        return node.name in finite
    if isinstance(node, Repeat):
        return node.low == 0 or _is_finite(node.item, finite)
    if isinstance(node, Group):
        parts = (_is_finite(item, finite) for item in node.items)
        return all(parts) if node.kind == "all" else any(parts)
    return True


def _check_size(rules: Mapping[str, Rule], plain: Iterable[str], limits: GuideLimits) -> None:
    """A rule is written out wherever it is used in a terminal, and repetitions are written out too."""
    sizes = dict.fromkeys(rules, 1)
    for name in (*plain, *rules):  # plain ones first and in order, so that what a terminal uses has its size
        sizes[name] = _size(rules[name].body, sizes)
        if sizes[name] > limits.max_pattern_size:
            remedy = f"written out it is larger than {limits.max_pattern_size}; use smaller counts"
            raise GuideError(f"line {rules[name].line}", f"the rule {name}", remedy)
        if name not in plain:
            sizes[name] = 1


def _size(node: Node, sizes: Mapping[str, int]) -> int:
    if isinstance(node, Text):
        return len(node.value.encode())
    if isinstance(node, RuleRef):
        return sizes[node.name]
    if isinstance(node, Repeat):
        return _size(node.item, sizes) * max(node.high or 0, node.low, 1)
    if isinstance(node, Group):
        return sum(_size(item, sizes) for item in node.items)
    return 1 + len(node.ranges)


def _references(node: Node) -> Iterator[RuleRef]:
    if isinstance(node, RuleRef):
        yield node
    elif isinstance(node, Repeat):
        yield from _references(node.item)
    elif isinstance(node, Group):
        for item in node.items:
            yield from _references(item)


def _plain(rules: Mapping[str, Rule]) -> dict[str, None]:
    """The rules that lead to no recursion, each after those it uses. A dict for its order."""
    uses = {name: {reference.name for reference in _references(rule.body)} for name, rule in rules.items()}
    plain: dict[str, None] = {}
    has_grown = True
    while has_grown:
        grown = [name for name, used in uses.items() if name not in plain and used <= plain.keys()]
        plain.update(dict.fromkeys(grown))
        has_grown = bool(grown)
    return plain


def _lark(node: Node, names: Mapping[str, str]) -> str:
    if isinstance(node, Text):
        return f"/{as_pattern(node.value)}/" if node.value else '""'
    if isinstance(node, CharClass):
        return f"/{_class(node)}/"
    if isinstance(node, RuleRef):
        return names[node.name]
    if isinstance(node, Repeat):
        high = "" if node.high is None else str(node.high)
        return f"({_lark(node.item, names)}){{{node.low},{high}}}"
    if not node.items:
        return '""'
    joint = " " if node.kind == "all" else " | "
    return f"({joint.join(_lark(item, names) for item in node.items)})"


def _class(node: CharClass) -> str:
    if not node.ranges:
        return "(?s:.)"
    ranges = "".join(f"{_escaped(chr(low))}-{_escaped(chr(high))}" for low, high in node.ranges)
    return f"[{'^' if node.is_negated else ''}{ranges}]"


def as_pattern(text: str) -> str:
    """A regular expression that matches ``text`` only; safe inside the slashes of Lark."""
    return "".join(map(_escaped, text))


def _escaped(char: str) -> str:
    """A character inside a regular expression, by number unless it is a plain one."""
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):X}}}"
