"""The size of a regular expression, without compiling it.

A compiler writes ``{n}`` out, so nested repetitions multiply. The walk below keeps one number per open group::

    (ab{3}|c){10}   a 1, b 3, c 1 -> group 5, times 10 -> 50

It never counts too little: text that is no valid expression is counted as if it were one, and refused by the compiler later.
"""

from __future__ import annotations

import re

from tandem.guided.errors import GuideError
from tandem.guided.limits import GuideLimits

_COUNTED = re.compile(r"\{(\d*)(?:,(\d*))?\}")
_ESCAPE = re.compile(r"\\(?:[pPxuU]\{[^}]*\}|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|.)", re.DOTALL)
# A Unicode class is a table of ranges, and the compiler cuts it into bytes.
_UNICODE_CLASS_SIZE = 40


def pattern_size(pattern: str, path: str, limits: GuideLimits) -> int:
    """Atoms with all repetitions written out. Raises: GuideError when groups nest too deep or a part alone is too large."""
    sizes = [0]  # of the open groups; the last is the innermost
    last = 0  # size of the item a quantifier would apply to
    position = 0
    while position < len(pattern):
        char = pattern[position]
        counted = _COUNTED.match(pattern, position) if char == "{" else None
        if counted is not None:
            grown = last * max(_bound(counted), 1)
            sizes[-1] += grown - last
            last, position = grown, counted.end()
        elif char == "(":
            if len(sizes) > limits.max_group_depth:
                raise GuideError(path, pattern, f"groups may nest {limits.max_group_depth} deep")
            sizes.append(0)
            position += 1
        elif char == ")" and len(sizes) > 1:
            last = sizes.pop()
            sizes[-1] += last
            position += 1
        else:
            position, last = _atom(pattern, position)
            sizes[-1] += last
        if max(last, sizes[-1]) > limits.max_pattern_size:
            remedy = f"with its repetitions written out it is larger than {limits.max_pattern_size}; use smaller counts"
            raise GuideError(path, pattern, remedy)
    return sum(sizes)


def _bound(counted: re.Match[str]) -> int:
    """The larger count; digits beyond six would only cost time."""
    return max(int((digits or "0")[:7]) for digits in counted.groups())


def _atom(pattern: str, position: int) -> tuple[int, int]:
    """End and size of what is neither group nor count."""
    char = pattern[position]
    if char == "\\":
        match = _ESCAPE.match(pattern, position)
        end = position + 1 if match is None else match.end()
        return end, _UNICODE_CLASS_SIZE if pattern[position + 1 : position + 2] in ("p", "P") else 1
    if char == "[":
        return _class_end(pattern, position), 1 + _UNICODE_CLASS_SIZE * pattern.count(
            "\\p", position, _class_end(pattern, position)
        )
    return position + 1, 0 if char in "*+?|^$" else 1


def _class_end(pattern: str, start: int) -> int:
    """Behind the bracket that closes the class at ``start``; classes nest. An unclosed one ends after its bracket."""
    depth, position = 0, start
    while position < len(pattern):
        char = pattern[position]
        if char == "\\":
            position += 1
        elif char == "[":
            depth += 1
            is_first = pattern.startswith(("]", "^]"), position + 1)
            position = pattern.index("]", position) if is_first else position
        elif char == "]":
            depth -= 1
            if depth == 0:
                return position + 1
        position += 1
    return start + 1
