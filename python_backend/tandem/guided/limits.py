"""What a guide may cost, before anything is compiled. Grammar compilers take time that grows with sizes a caller chooses freely."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GuideLimits:
    """Largest sizes of one guide; what is larger is refused by name. The defaults keep a compile under 100 ms and 64 MB.

    ``max_guide_bytes``: the whole text. ``max_json_depth``: nesting of a schema's JSON. ``max_schema_nodes``: schemas reached from
    the root, each counted once. ``max_properties``: declared by one object (compile time grows with their square);
    ``max_all_properties``: by all objects, those that combinations multiply counted for each.
    ``max_literals`` and ``max_literal_bytes``: values of enum, const and choice, property names, quoted texts of a grammar: their
    number, and the size of one. ``max_branches``: combinations of anyOf, oneOf and allOf that one schema stands for.
    ``max_repetition``: any bound of items or characters. ``max_pattern_size``: atoms of a regular expression when its repetitions
    are written out, in all patterns together. ``max_group_depth``: nesting of its groups. ``max_rules``: of an EBNF grammar.
    ``max_multiple``: the least common multiple of all multipleOf, in units of their last decimal (a remainder is a lexer state).
    ``max_pattern_properties``: of one object. ``max_joint_patterns``: patterns and formats that one string must match at once.
    """

    max_guide_bytes: int = 256 * 1024
    max_json_depth: int = 128
    max_schema_nodes: int = 4000
    max_properties: int = 256
    max_all_properties: int = 1500
    max_literals: int = 2000
    max_literal_bytes: int = 2048
    max_branches: int = 256
    max_repetition: int = 100_000
    max_pattern_size: int = 10_000
    max_group_depth: int = 50
    max_multiple: int = 5000
    max_pattern_properties: int = 20
    max_joint_patterns: int = 4
    max_rules: int = 500
