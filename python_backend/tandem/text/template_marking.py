"""Put markers in place of the control tokens that a chat template writes, and only there.

A template names control tokens in its literal text and in string constants. Those that flow into the output get the marker of
``tandem.text.control_tokens``; those that are only compared with a message (``'</think>' in content``, ``content.split(...)``) stay
as they are, so that the template keeps acting on messages as its author meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from jinja2 import nodes

from tandem.text.control_tokens import ControlToken

# Calls whose arguments are looked for in a string, not written to the output. Of "replace" that is the first argument only.
_SEARCHING_METHODS = frozenset(
    {"split", "rsplit", "partition", "rpartition", "startswith", "endswith", "strip", "lstrip", "rstrip", "removeprefix"}
    | {"removesuffix", "find", "rfind", "index", "rindex", "count", "get", "replace"}
)
_SEARCHING_FILTERS = frozenset({"trim", "select", "reject", "selectattr", "rejectattr", "map", "sort", "groupby", "replace"})


class Marking:
    """The two directions between the text of control tokens and their markers, for one tokenizer."""

    def __init__(self, tokens: Sequence[ControlToken]) -> None:
        self._marker_of = {token.text: token.marker for token in tokens}
        self._text_of = {token.marker: token.text for token in tokens}
        self._texts = _alternation(self._marker_of)
        self._markers = _alternation(self._text_of)

    def mark(self, text: str) -> str:
        """``text`` with every control token's text replaced by its marker."""
        return self._texts.sub(lambda match: self._marker_of[match[0]], text)

    def unmark(self, text: str) -> str:
        """The inverse of :meth:`mark`."""
        return self._markers.sub(lambda match: self._text_of[match[0]], text)

    def texts_in(self, text: str) -> list[str]:
        """The control tokens spelled out in ``text``, in order."""
        return self._texts.findall(text)

    def marked_in(self, text: str) -> list[str]:
        """The control tokens whose markers stand in ``text``, in order."""
        return [self._text_of[marker] for marker in self._markers.findall(text)]

    def mark_template(self, node: nodes.Node) -> None:
        """Mark every literal under ``node`` that can reach the output. Modifies: ``node``."""
        if isinstance(node, nodes.TemplateData):
            node.data = self.mark(node.data)
        elif isinstance(node, nodes.Const):
            if isinstance(node.value, str):
                node.value = self.mark(node.value)
        else:
            for child in _output_children(node):
                self.mark_template(child)


def _alternation(texts: Iterable[str]) -> re.Pattern[str]:
    """Matches any of ``texts``, the longest first; with none, nothing."""
    ordered = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) if ordered else r"(?!)")


def _output_children(node: nodes.Node) -> Iterable[nodes.Node]:
    """The children whose value may be written, without those that only decide or search."""
    if isinstance(node, (nodes.Compare, nodes.Test)):
        return ()
    if isinstance(node, nodes.Getitem):
        return (node.node,)
    if isinstance(node, nodes.Pair):
        return (node.value,)
    if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr) and node.node.attr in _SEARCHING_METHODS:
        return (node.node.node, *_written_arguments(node.node.attr, node.args))
    if isinstance(node, nodes.Filter) and node.name in _SEARCHING_FILTERS:
        receiver = () if node.node is None else (node.node,)
        return (*receiver, *_written_arguments(node.name, node.args))
    return node.iter_child_nodes()


def _written_arguments(name: str, arguments: Sequence[nodes.Node]) -> Sequence[nodes.Node]:
    return arguments[1:2] if name == "replace" else ()
