"""The vocabulary of an engine folder for llguidance, read from its ``tokenizer.json``; no torch, no transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llguidance import LLTokenizer

from tandem.errors import SetupError


def load_tokenizer(engine_dir: Path, vocab_size: int) -> LLTokenizer:
    """``vocab_size``: of the engine's logits; ids beyond the tokenizer's own stay forbidden. Raises: SetupError."""
    path = engine_dir / "tokenizer.json"
    try:
        text = path.read_text(encoding="utf-8")
        tokenizer = json.loads(text)
        config = json.loads((engine_dir / "tokenizer_config.json").read_text(encoding="utf-8"))
        return LLTokenizer(text, n_vocab=vocab_size, eos_token=_end_id(tokenizer, config))
    except (OSError, ValueError) as error:
        raise SetupError(f"{path}: no grammar can be built over this tokenizer ({error}); rebuild the engine") from error


def _end_id(tokenizer: dict[str, Any], config: dict[str, Any]) -> int | None:
    """The id of ``eos_token``, so that it never counts as text; None leaves it to llguidance. Requests name their own end token."""
    name = config.get("eos_token")
    text = name.get("content") if isinstance(name, dict) else name
    return next((int(token["id"]) for token in tokenizer.get("added_tokens", ()) if token.get("content") == text), None)
