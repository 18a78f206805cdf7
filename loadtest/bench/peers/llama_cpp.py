"""llama.cpp (llama-cpp-python) on the GGUF that the CPU engines are built from."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.bench.workload import NUM_OUTPUT_TOKENS

_MAX_BATCH_TOKENS = 512


class LlamaCpp:
    """Runs whole batches with one KV sequence per prompt; greedy, the end token is an ordinary one."""

    def __init__(self, gguf: Path, *, max_num_seqs: int, num_context_tokens: int, num_threads: int) -> None:
        import llama_cpp

        self._lib: Any = llama_cpp
        llama_cpp.llama_log_set(_SILENT, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(str(gguf).encode(), llama_cpp.llama_model_default_params())
        assert self._model, f"llama.cpp can't load {gguf}"
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = num_context_tokens
        params.n_batch = params.n_ubatch = _MAX_BATCH_TOKENS
        params.n_seq_max = max_num_seqs
        params.kv_unified = True
        params.n_threads = params.n_threads_batch = num_threads
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        assert self._context, "llama.cpp can't make a context"
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(_MAX_BATCH_TOKENS, 0, 1)

    def tok_s(self, prompts: list[tuple[int, ...]]) -> float:
        lib = self._lib
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)
        started = time.perf_counter()
        tokens = [0] * len(prompts)
        for number, prompt in enumerate(prompts):
            rows = self._decode([(token, position, number, position == len(prompt) - 1) for position, token in enumerate(prompt)])
            tokens[number] = int(rows[0])
        for step in range(1, NUM_OUTPUT_TOKENS):
            rows = self._decode([(tokens[i], len(prompts[i]) + step - 1, i, True) for i in range(len(prompts))])
            tokens = [int(row) for row in rows]
        return len(prompts) * NUM_OUTPUT_TOKENS / (time.perf_counter() - started)

    def _decode(self, entries: list[tuple[int, int, int, bool]]) -> np.ndarray[Any, np.dtype[np.intp]]:
        """Compute (token, position, sequence, wanted) entries; returns the arg-max of each wanted row."""
        batch, lib = self._batch, self._lib
        batch.n_tokens = len(entries)
        wanted = []
        for i, (token, position, sequence, is_wanted) in enumerate(entries):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = is_wanted
            if is_wanted:
                wanted.append(i)
        status = lib.llama_decode(self._context, batch)
        assert status == 0, f"llama_decode gave {status}"
        rows = [np.ctypeslib.as_array(lib.llama_get_logits_ith(self._context, i), shape=(self._vocab_size,)) for i in wanted]
        return np.array([row.argmax() for row in rows])


def _ignore(_level: int, _text: bytes, _data: object) -> None:
    """llama.cpp's own log is of no interest in a benchmark."""


_SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(_ignore)
