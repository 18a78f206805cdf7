"""The bytes behind a token id, for the two families of vocabularies that models of today use.

* byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM): every character of a piece stands for one byte;
* SentencePiece style (Llama 2, Mistral, Gemma): ``▁`` is a blank, ``<0x0A>`` is one byte, the rest is UTF-8 text.

Working on bytes makes decoding a plain concatenation: no piece depends on its neighbours, so nothing has to be decoded twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from tandem.errors import SetupError

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def piece_decoder(decoder: dict[str, Any] | None) -> Callable[[str], bytes]:
    """The function from a vocabulary entry to its bytes, chosen by the ``decoder`` of ``tokenizer.json``.

    Raises: SetupError for a decoder of another family (WordPiece, CTC, ...).
    """
    kinds = [part.get("type") for part in _parts(decoder)]
    if "ByteLevel" in kinds:
        return _from_byte_level
    if "Metaspace" in kinds or any(_replaces_blank_sign(part) for part in _parts(decoder)):
        return _from_sentencepiece
    raise SetupError(
        f"tokenizer.json has the decoder {kinds or None}, which Tandem can't stream; use a model with a byte-level or "
        "SentencePiece tokenizer (Llama, Mistral, Qwen2, Qwen3)"
    )


def _parts(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if decoder is None:
        return
    if decoder.get("type") == "Sequence":
        for part in decoder["decoders"]:
            yield from _parts(part)
    else:
        yield decoder


def _replaces_blank_sign(part: dict[str, Any]) -> bool:
    return part.get("type") == "Replace" and part.get("pattern") == {"String": "▁"} and part.get("content") == " "


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of the byte-level alphabet: printable Latin-1 stands for itself, the other 68 bytes follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _from_byte_level(piece: str) -> bytes:
    try:
        return bytes([_BYTE_OF[char] for char in piece])
    except KeyError:  # an added token, stored as the text it stands for
        return piece.encode()


def _from_sentencepiece(piece: str) -> bytes:
    match = _BYTE_PIECE.fullmatch(piece)
    if match is not None:
        return bytes([int(match[1], 16)])
    return piece.replace("▁", " ").encode()
