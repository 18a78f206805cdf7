"""Small tokenizers for text tests, made on the spot: no weights, no files, nothing shared between tests that can change."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HfTokenizer

from tandem.text.tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
START, END = 1, 2
_SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "the weather today is fine and the answer is forty two",
    "system user assistant You are a helpful assistant",
    "translate this sentence into French, please",
)
_PLAIN_ADDED = ("<think>", "</think>", "<tool_call>")


@cache
def _trained_json(num_merged: int) -> str:
    """A byte-level BPE: 3 special tokens, 256 bytes, then at most ``num_merged`` merged pieces, 3 marker tokens at the end."""
    tokenizer = HfTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=len(SPECIAL) + 256 + num_merged,
        special_tokens=[AddedToken(text, normalized=False) for text in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_SENTENCES, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in _PLAIN_ADDED])
    return tokenizer.to_str()


def tokenizer_spec(*, num_merged: int = 120) -> dict[str, Any]:
    """A fresh ``tokenizer.json`` object. ``num_merged=0``: every character beyond ASCII takes several tokens."""
    return json.loads(_trained_json(num_merged))


def tokenizer_config(**changes: Any) -> dict[str, Any]:
    """A fresh ``tokenizer_config.json`` object; None takes a key out."""
    config = {"chat_template": CHATML, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    return {key: value for key, value in (config | changes).items() if value is not None}


def make_tokenizer(*, num_merged: int = 120, **config: Any) -> Tokenizer:
    return Tokenizer(tokenizer_spec(num_merged=num_merged), tokenizer_config(**config))


def outside_tokenizer(spec: dict[str, Any]) -> HfTokenizer:
    """The same vocabulary as the ``tokenizers`` package reads it: control tokens are found in any text. The reference of tests."""
    return HfTokenizer.from_str(json.dumps(copy.deepcopy(spec)))


def write_engine_folder(folder: Path, *, num_merged: int = 120, **config: Any) -> Path:
    """The tokenizer files of an engine folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_spec(num_merged=num_merged)), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(**config)), encoding="utf-8")
    return folder


def sentencepiece_spec() -> dict[str, Any]:
    """A tokenizer in the manner of Llama 2: blanks as ▁, unknown characters as bytes, a start token before raw text."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *map(chr, range(0x61, 0x7B)), "▁h", "▁hi"]
    start = {"id": "<s>", "ids": [1], "tokens": ["<s>"]}
    return {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [
            {
                "id": index,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index, text in enumerate(("<unk>", "<s>", "</s>"))
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": start},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {piece: index for index, piece in enumerate(pieces)},
            "merges": ["▁ h", "▁h i"],
        },
    }
