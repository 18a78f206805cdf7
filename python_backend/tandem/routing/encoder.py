"""The sentence encoder of the route classifier: text to one vector per layer, on ONNX Runtime, one thread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from tokenizers import Tokenizer

from tandem.errors import SetupError

MAX_TOKENS = 192
"""A longer text is read as its beginning and its end, where instructions stand."""

NUM_TAIL_TOKENS = 64
_CANNOT_READ = (OSError, ValueError, KeyError, TypeError)


class SentenceEncoder:
    """Thread-safe. One text per run: activations are quantized with one scale per tensor, so a batch would mix its members."""

    @classmethod
    def load(cls, folder: Path) -> SentenceEncoder:
        """``folder`` is what build_engines.encoder makes. Raises: SetupError."""
        remedy = "build it again (`tandem engines build`)"
        try:
            identity = str(json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["encoder"])
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except _CANNOT_READ as error:
            raise SetupError(f"{folder}: the sentence encoder cannot be read ({error}); {remedy}") from error
        except Exception as error:  # the tokenizers library raises bare exceptions
            raise SetupError(f"{folder / 'tokenizer.json'}: not a tokenizer ({error}); {remedy}") from error
        tokenizer.no_padding()
        tokenizer.no_truncation()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        try:
            session = onnxruntime.InferenceSession(str(folder / "encoder.onnx"), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # so does ONNX Runtime
            raise SetupError(f"{folder / 'encoder.onnx'}: not a model ({error}); {remedy}") from error
        return cls(session, tokenizer, identity)

    def __init__(self, session: Any, tokenizer: Any, identity: str) -> None:
        """``identity`` names weights and quantization: a head fits the encoder it was trained on and no other."""
        self._session = session
        self._tokenizer = tokenizer
        self.identity = identity

    def token_ids(self, text: str) -> list[int]:
        """At most ``MAX_TOKENS``, the marks of beginning and end included."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids if len(ids) <= MAX_TOKENS else ids[: MAX_TOKENS - NUM_TAIL_TOKENS] + ids[-NUM_TAIL_TOKENS:]

    def layer_means(self, text: str) -> npt.NDArray[np.float32]:
        """The mean over the tokens after each layer. [num_layers, hidden_size]"""
        (means,) = self._session.run(["layer_means"], {"input_ids": np.array([self.token_ids(text)], np.int64)})
        vector: npt.NDArray[np.float32] = means[0]
        return vector
