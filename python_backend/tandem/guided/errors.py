"""The one way a guide is refused: by field, place, what stands there, and what to do."""

from __future__ import annotations

import json

from tandem.errors import InvalidRequest, Unsupported, quote

TYPE_FIELD = "guided_decoding_guide_type"
GUIDE_FIELD = "guided_decoding_guide"


class GuideError(InvalidRequest):
    """A guide that is wrong or too large. ``path``: where in it (``$.properties.v.type``, ``line 3``)."""

    def __init__(self, path: str, value: object, remedy: str) -> None:
        super().__init__(GUIDE_FIELD, _at(path, value), remedy)
        self.path = path


class UnsupportedGuide(Unsupported):
    """A guide that is right but asks for what the grammar engine cannot hold. ``path`` as in :class:`GuideError`."""

    def __init__(self, path: str, value: object, remedy: str) -> None:
        super().__init__(GUIDE_FIELD, _at(path, value), remedy)
        self.path = path


def _at(path: str, value: object) -> str:
    """The whole stays within what :func:`tandem.errors.quote` keeps: a long value is shortened, the place is not."""
    joint = " = " if path.startswith("$") else ": "
    room = 79 - len(path) - len(joint)
    text = quote(value if isinstance(value, str) else _json(value))
    return path if room < 8 else f"{path}{joint}{text if len(text) <= room else text[: room - 1] + '…'}"


def _json(value: object) -> str:
    """As the caller wrote it: true, not True."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)


def child(path: str, key: str | int) -> str:
    """The JSON path of a member."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if key.isidentifier() or key.startswith("$") else f"{path}[{quote(key)!r}]"
