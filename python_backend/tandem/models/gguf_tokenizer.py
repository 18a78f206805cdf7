"""The tokenizer inside a GGUF file, written in the form of Hugging Face: ``tokenizer.json`` and ``tokenizer_config.json``.

GGUF names the splitting rule that runs before byte-pair merging (``tokenizer.ggml.pre``) but does not hold it; the rules we know
are in ``_PRE_TOKENIZERS``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from tandem.errors import SetupError

_CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL
_USER_TOKEN = 4  # gguf.TokenType.USER_DEFINED

# Qwen2 and later: contractions, words with at most one leading sign, single digits, runs of signs, line ends, blanks.
_QWEN2_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )


def _qwen2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN2_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


_PRE_TOKENIZERS: Mapping[str, Callable[[], pre_tokenizers.PreTokenizer]] = {"smollm": _smollm, "qwen2": _qwen2, "gpt-2": _gpt2}


def write_gguf_tokenizer(metadata: Mapping[str, Any], origin: str, folder: Path) -> None:
    """Write both files into ``folder``. Raises: SetupError when the kind of tokenizer is not known here."""
    kind, pre = metadata.get("tokenizer.ggml.model"), str(metadata.get("tokenizer.ggml.pre"))
    if kind != "gpt2" or pre not in _PRE_TOKENIZERS:
        known = ", ".join(_PRE_TOKENIZERS)
        raise SetupError(
            f"{origin}: the tokenizer is {kind!r} with pre-tokenizer {pre!r}; a GGUF needs 'gpt2' with one of {known}: "
            "use the model's Hugging Face folder instead"
        )
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, token_type in zip(tokens, types, strict=True) if token_type == _CONTROL_TOKEN]
    user = [token for token, token_type in zip(tokens, types, strict=True) if token_type == _USER_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in user])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = _tokenizer_config(metadata, tokens, special)
    (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _tokenizer_config(metadata: Mapping[str, Any], tokens: list[str], special: list[str]) -> dict[str, Any]:
    def token(field: str) -> str | None:
        index = metadata.get(f"tokenizer.ggml.{field}_token_id")
        return None if index is None else tokens[index]

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "add_bos_token": bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "pad_token": token("padding"),
        "unk_token": token("unknown"),
        "additional_special_tokens": special,
        "chat_template": metadata.get("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
    }
