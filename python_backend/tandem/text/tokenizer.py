"""Text to token ids and back, from the ``tokenizer.json`` and ``tokenizer_config.json`` of an engine folder.

Built on the ``tokenizers`` package alone: importing ``transformers`` costs seconds in every model process and adds nothing here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as _HfTokenizer

from tandem.errors import InvalidRequest, SetupError
from tandem.text.control_tokens import ControlToken, hide_control_tokens
from tandem.text.pieces import piece_decoder

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""What :meth:`Tokenizer.load` reads; the last one is optional."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class Tokenizer:
    """One vocabulary. Immutable after construction and thread-safe.

    No text, whoever wrote it, encodes to a control token; only markers do (see ``tandem.text.control_tokens``).
    """

    def __init__(self, spec: dict[str, Any], config: dict[str, Any]) -> None:
        """Modifies: ``spec`` (a parsed ``tokenizer.json``), which must not be used again. Raises: SetupError."""
        self.fingerprint = _fingerprint(spec)
        self._bytes_of_piece = piece_decoder(spec.get("decoder"))
        self.control_tokens: tuple[ControlToken, ...] = hide_control_tokens(spec)
        self._hf = _HfTokenizer.from_str(json.dumps(spec))
        self._hf.no_truncation()
        self._hf.no_padding()
        self._check_ids()
        self.special_ids = frozenset(token.id for token in self.control_tokens if token.is_special)
        self._pieces: dict[int, bytes] = {token.id: token.text.encode() for token in self.control_tokens}
        self._by_text = {token.text: token for token in self.control_tokens}
        self.named_tokens: dict[str, str] = {
            name: text for name in _NAMED_TOKENS if (text := _token_text(config.get(name))) is not None
        }
        self.chat_template: str | None = _chat_template(config)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read an engine folder. A ``chat_template.jinja`` beside the configuration wins over the template inside it.

        Raises: SetupError naming the file that is missing or broken.
        """
        spec = _read_json(folder / "tokenizer.json")
        config = _read_json(folder / "tokenizer_config.json")
        template_file = folder / "chat_template.jinja"
        if template_file.is_file():
            config = {**config, "chat_template": template_file.read_text(encoding="utf-8")}
        try:
            return cls(spec, config)
        except SetupError as error:
            raise SetupError(f"{folder}: {error.message}") from error
        except Exception as error:  # the tokenizers package raises bare Exception for a file it can't use
            raise SetupError(f"{folder / 'tokenizer.json'} can't be used ({error}); build the engine folder again") from error

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included; valid ids are 0..vocab_size-1."""
        return int(self._hf.get_vocab_size(with_added_tokens=True))

    @property
    def eos_id(self) -> int | None:
        """The id that ends an answer, or None where the tokenizer names none."""
        text = self.named_tokens.get("eos_token")
        return None if text is None else self.token_id(text)

    def control_token(self, text: str) -> ControlToken | None:
        """The control token with this text, or None."""
        return self._by_text.get(text)

    def token_id(self, text: str) -> int | None:
        """The id of a control token's text or of a vocabulary piece, or None."""
        token = self._by_text.get(text)
        if token is not None:
            return token.id
        found = self._hf.token_to_id(text)
        return None if found is None else int(found)

    def encode(self, text: str, *, add_special_tokens: bool, field: str = "text_input") -> tuple[int, ...]:
        """Ids of ``text``. ``add_special_tokens`` adds what the model wants around raw text (for many: a start token).

        Raises: InvalidRequest naming ``field`` for a lone surrogate, which no UTF-8 text has.
        """
        try:
            encoding = self._hf.encode(text, add_special_tokens=add_special_tokens)
        except (UnicodeEncodeError, TypeError):
            if _LONE_SURROGATE.search(text) is None:
                raise
            raise InvalidRequest(field, text, "send valid Unicode text without lone surrogates") from None
        return tuple(encoding.ids)

    def piece(self, token_id: int) -> bytes:
        """The bytes of one token; for a control token its name. May end in the middle of a character.

        Raises: KeyError for an id outside the vocabulary.
        """
        piece = self._pieces.get(token_id)
        if piece is None:
            entry = self._hf.id_to_token(token_id) if 0 <= token_id < 2**32 else None
            if entry is None:
                raise KeyError(token_id)
            piece = self._pieces[token_id] = self._bytes_of_piece(entry)
        return piece

    def decode(self, token_ids: Sequence[int]) -> str:
        """The whole text at once, special tokens left out, bytes that are no UTF-8 as U+FFFD."""
        return b"".join(self.piece(i) for i in token_ids if i not in self.special_ids).decode("utf-8", errors="replace")

    def _check_ids(self) -> None:
        for token in self.control_tokens:
            if self._hf.token_to_id(token.marker) != token.id:
                raise SetupError(
                    f"tokenizer.json gives {token.text} the id {token.id}, which its vocabulary contradicts; "
                    "build the engine folder again"
                )


def _fingerprint(spec: dict[str, Any]) -> str:
    """Equal for two tokenizers exactly when every text and every id mean the same to both."""
    keys = ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model")
    content = json.dumps({key: spec.get(key) for key in keys}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _token_text(value: Any) -> str | None:
    """Configurations state a token as text or as an object with ``content``."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _chat_template(config: dict[str, Any]) -> str | None:
    """The template, or the one named "default" where a configuration holds several."""
    template = config.get("chat_template")
    if isinstance(template, list):
        template = next((entry.get("template") for entry in template if entry.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SetupError(f"{path} is missing; build the engine folder again") from None
    except (OSError, ValueError) as error:
        raise SetupError(f"{path} can't be read ({error}); build the engine folder again") from error
    if not isinstance(content, dict):
        raise SetupError(f"{path} is no JSON object; build the engine folder again")
    return content
