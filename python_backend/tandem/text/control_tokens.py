"""Control tokens that no text can spell: the basis of "user text never becomes a control token".

A tokenizer finds its control tokens (``<|im_end|>``) in any text it is given, whoever wrote that text. Escaping the text of users
is fragile: it must survive trimming, splitting and comparing in chat templates. So the other side is changed. Before the
tokenizer is built, the text of every control token in ``tokenizer.json`` is replaced by a *marker*, a string with a random
number drawn once per tokenizer::

    tokenizer.json          "<|im_end|>"  id 2        ->      "\\ufdd0" + nonce + "2" + "\\ufdd1"   id 2

From then on ``<|im_end|>`` is ordinary text to the tokenizer, and only who holds the marker (``tandem.text.chat_template``, for
the literals of the template) can write id 2. Ids, and the flags that make a token swallow blanks around it, stay as they are.

What counts as control token: every added token that is marked special, and every other added token in brackets (``<think>``,
``[INST]``, ``{tool}``), since models obey those too. Added tokens such as runs of blanks are ordinary text and stay.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tandem.errors import SetupError

_OPENING, _CLOSING = "<[{", ">]}"


@dataclass(frozen=True, slots=True)
class ControlToken:
    """One control token. ``is_special`` ones are left out of decoded text, as tokenizers do."""

    id: int
    text: str
    marker: str
    is_special: bool


def hide_control_tokens(spec: dict[str, Any]) -> tuple[ControlToken, ...]:
    """Replace the text of every control token by its marker. Modifies: ``spec``, a parsed ``tokenizer.json``.

    Raises: SetupError when two added tokens share a text.
    """
    nonce = secrets.token_hex(12)
    tokens: list[ControlToken] = []
    for added in spec.get("added_tokens") or ():
        text = added["content"]
        if not (added["special"] or _is_bracketed(text)):
            continue
        token = ControlToken(added["id"], text, f"\ufdd0{nonce}{added['id']:x}\ufdd1", added["special"])
        added["content"] = token.marker
        tokens.append(token)
    markers = {token.text: token.marker for token in tokens}
    if len(markers) != len(tokens):
        raise SetupError("tokenizer.json lists two added tokens with the same text; build the engine folder again")
    _rename_in_model(spec["model"], markers)
    return tuple(tokens)


def _is_bracketed(text: str) -> bool:
    return len(text) > 2 and text[0] in _OPENING and text[-1] in _CLOSING


def _rename_in_model(model: dict[str, Any], markers: Mapping[str, str]) -> None:
    vocab = model["vocab"]
    if isinstance(vocab, list):  # Unigram: [[piece, score], ...]
        model["vocab"] = [[markers.get(piece, piece), score] for piece, score in vocab]
    else:
        model["vocab"] = {markers.get(piece, piece): token_id for piece, token_id in vocab.items()}
    if model.get("unk_token") in markers:
        model["unk_token"] = markers[model["unk_token"]]
