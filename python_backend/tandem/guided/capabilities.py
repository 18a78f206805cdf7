"""What the engines of a profile can be asked for, as data. The router refuses the rest before an engine sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandem.types import GuideType

_ALL = frozenset(GuideType)


@dataclass(frozen=True, slots=True)
class GuidedCapabilities:
    """``types``: what may be asked for. ``has_jump_forward``: forced tokens need no step each. ``has_exact_end``: an answer whose
    grammar is complete ends at once. ``with_num_return_sequences``, ``with_draft_tokens``: may be combined with these.
    """

    types: frozenset[GuideType]
    has_jump_forward: bool
    has_exact_end: bool
    with_num_return_sequences: bool
    with_draft_tokens: bool


CAPABILITIES: Mapping[str, GuidedCapabilities] = {
    "cpu": GuidedCapabilities(
        types=_ALL, has_jump_forward=True, has_exact_end=True, with_num_return_sequences=True, with_draft_tokens=True
    ),
    # The Triton backend of TensorRT-LLM 1.2 has no way to pass a structural tag, and its drafts do not follow a grammar.
    "trtllm": GuidedCapabilities(
        types=_ALL - {GuideType.STRUCTURAL_TAG},
        has_jump_forward=False,
        has_exact_end=True,
        with_num_return_sequences=True,
        with_draft_tokens=False,
    ),
    "llmapi": GuidedCapabilities(
        types=_ALL, has_jump_forward=False, has_exact_end=True, with_num_return_sequences=True, with_draft_tokens=False
    ),
}
"""By the name of the profile."""
