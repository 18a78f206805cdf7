"""Two questions about a whole schema that no single keyword answers: does it end, and how many combinations does it stand for.

A schema has a finite value when one can be built bottom up. The set is a least fixed point: it starts empty, and a schema joins
when what it needs has joined::

    {"$ref": "#"}                          needs itself: never joins
    node: {v: integer, kids: [node] 0..2}  kids may be empty: joins
    list: minItems 1 of list               needs itself: never joins
"""

from __future__ import annotations

import math

from tandem.guided.errors import GuideError
from tandem.guided.limits import GuideLimits
from tandem.guided.schema_walk import ReachedSchema, SchemaWalk

_COMBINATIONS = frozenset(("anyOf", "oneOf", "allOf"))
_MAX_CHAIN = 100  # of schemas that apply to one value through $ref and allOf


def check_finite(walk: SchemaWalk) -> None:
    """Raises: GuideError when no finite value is valid."""
    if all(schema.target is None and schema.value is not False for schema in walk):
        return  # what refers to nothing ends where its text ends
    users: dict[int, list[ReachedSchema]] = {}
    for schema in walk:
        for part in _needs(schema):
            users.setdefault(id(part), []).append(schema)
    finite: set[int] = set()
    left = list(walk)
    while left:
        schema = left.pop()
        if id(schema) not in finite and _is_finite(schema, finite):
            finite.add(id(schema))
            left += users.get(id(schema), [])
    if id(walk.root) not in finite:
        looping = next((schema for schema in walk if schema.target is not None and id(schema) not in finite), None)
        if looping is None:
            raise GuideError(walk.root.path, "the schema", "no value is valid")
        raise GuideError(looping.path, "a reference loop", "no finite value is valid; let something end it (an optional property)")


def _needs(schema: ReachedSchema) -> list[ReachedSchema]:
    parts = [part for of_keyword in schema.parts.values() for part in of_keyword]
    return parts if schema.target is None else [*parts, schema.target]


def _is_finite(schema: ReachedSchema, finite: set[int]) -> bool:
    """By what is known so far; keywords that say nothing of the types a schema has are taken to hold."""
    value = schema.value
    if isinstance(value, bool):
        return value
    if schema.target is not None and id(schema.target) not in finite:
        return False
    if any(id(part) not in finite for part in schema.parts.get("allOf", ())):
        return False
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema.parts and not any(id(part) in finite for part in schema.parts[keyword]):
            return False
    if "enum" in value or "const" in value:
        return True
    return any(_has_finite(schema, kind, finite) for kind in _types(value))


def _types(value: dict[str, object]) -> list[str]:
    """The types a value may have, "scalar" for all that are neither array nor object."""
    named = value.get("type", ["array", "object", "scalar"])
    names = named if isinstance(named, list) else [named]
    return [name if name in ("array", "object") else "scalar" for name in names]


def _has_finite(schema: ReachedSchema, kind: str, finite: set[int]) -> bool:
    if kind == "array":
        needed = schema.parts.get("prefixItems", []) + schema.parts.get("items", [])
        count = int(schema.value.get("minItems", 0))
        return all(id(part) in finite for part in needed[: max(count, 0)])
    if kind == "object":
        names = list(schema.value.get("properties", {}))
        parts = dict(zip(names, schema.parts.get("properties", ()), strict=True))
        return all(id(parts[name]) in finite for name in schema.value.get("required", ()) if name in parts)
    return True


def check_branches(walk: SchemaWalk, limits: GuideLimits) -> None:
    """The compiler multiplies alternatives out where they meet in one schema, and automata of patterns that one string must match.

    Raises: GuideError when that is too many.
    """
    counts: dict[int, float] = {}
    patterns: dict[int, int] = {}
    for schema in walk:
        if schema.target is None and _COMBINATIONS.isdisjoint(schema.parts):
            continue  # it stands for itself, and its sizes have been looked at
        if _patterns(schema, patterns, set()) > limits.max_joint_patterns:
            remedy = f"one string may have to match {limits.max_joint_patterns} patterns and formats at once"
            raise GuideError(schema.path, "a combination of patterns", remedy)
        num_branches = _branches(schema, counts, set())
        if num_branches > limits.max_branches:
            remedy = f"anyOf, oneOf and allOf multiply to more than {limits.max_branches} combinations; use fewer"
            raise GuideError(schema.path, "a combination of schemas", remedy)
        num_own = len(schema.parts.get("properties", ())) + len(schema.parts.get("patternProperties", ()))
        if num_branches * num_own > limits.max_all_properties:
            remedy = f"anyOf, oneOf and allOf multiply its properties to more than {limits.max_all_properties}; use fewer"
            raise GuideError(schema.path, f"{num_own} properties", remedy)


def _branches(schema: ReachedSchema, counts: dict[int, float], open_ids: set[int]) -> float:
    """Alternatives of one schema without looking into its members: sums over anyOf and oneOf, products over what must all hold."""
    known = counts.get(id(schema))
    if known is not None:
        return known
    if id(schema) in open_ids:  # a loop of references; check_finite speaks about those
        return 1.0
    if len(open_ids) > _MAX_CHAIN:
        raise GuideError(schema.path, "a chain of references", f"at most {_MAX_CHAIN} may follow each other")
    open_ids.add(id(schema))
    product = 1.0
    if schema.target is not None:
        product *= _branches(schema.target, counts, open_ids)
    for part in schema.parts.get("allOf", ()):
        product *= _branches(part, counts, open_ids)
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema.parts:
            product *= math.fsum(_branches(part, counts, open_ids) for part in schema.parts[keyword])
    open_ids.discard(id(schema))
    counts[id(schema)] = min(product, 1e18)
    return counts[id(schema)]


def _patterns(schema: ReachedSchema, counts: dict[int, int], open_ids: set[int]) -> int:
    """Patterns and formats that a string under this schema must match at once, at most."""
    known = counts.get(id(schema))
    if known is not None or isinstance(schema.value, bool) or id(schema) in open_ids:
        return known or 0
    if len(open_ids) > _MAX_CHAIN:
        raise GuideError(schema.path, "a chain of references", f"at most {_MAX_CHAIN} may follow each other")
    open_ids.add(id(schema))
    count = sum(keyword in schema.value for keyword in ("pattern", "format"))
    if schema.target is not None:
        count += _patterns(schema.target, counts, open_ids)
    count += sum(_patterns(part, counts, open_ids) for part in schema.parts.get("allOf", ()))
    for keyword in ("anyOf", "oneOf"):
        count += max((_patterns(part, counts, open_ids) for part in schema.parts.get(keyword, ())), default=0)
    open_ids.discard(id(schema))
    counts[id(schema)] = count
    return count
