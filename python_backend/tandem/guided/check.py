"""The router's gate: a guide is right and affordable, or the request is refused before any engine sees it."""

from __future__ import annotations

from tandem.errors import InvalidRequest, Unsupported
from tandem.guided.capabilities import GuidedCapabilities
from tandem.guided.errors import GUIDE_FIELD, TYPE_FIELD
from tandem.guided.grammar import grammar_of, lower, parser_limits
from tandem.guided.limits import GuideLimits
from tandem.guided.trial import compile_error
from tandem.types import Guide, GuideType


def check_guide(guide_type: str | None, guide: str | None, capabilities: GuidedCapabilities, limits: GuideLimits) -> None:
    """Pure CPU, bounded in time and memory by ``limits``. Returns when the guide can be held.

    Raises: InvalidRequest or Unsupported naming the tensor, the place in the guide, what stands there and a remedy.
    """
    resolve_guide(guide_type, guide, capabilities, limits)


def resolve_guide(guide_type: str | None, guide: str | None, capabilities: GuidedCapabilities, limits: GuideLimits) -> Guide | None:
    """The guide for an engine, or None when none is asked for. Raises as :func:`check_guide`."""
    if guide_type is None:
        if guide is not None:
            raise InvalidRequest(TYPE_FIELD, "nothing", f"say how {GUIDE_FIELD} is to be read")
        return None
    known = {kind.value: kind for kind in GuideType}
    if guide_type not in known:
        raise InvalidRequest(TYPE_FIELD, guide_type, f"use one of {', '.join(known)}")
    kind = known[guide_type]
    if kind not in capabilities.types:
        raise Unsupported(TYPE_FIELD, guide_type, "the engines of this profile do not take this type")
    stated = Guide(kind, guide or "")
    checked = grammar_of(stated, limits)
    message = compile_error(checked.text, parser_limits())
    if message is not None:
        raise checked.error(message)
    return lower(stated, limits)
