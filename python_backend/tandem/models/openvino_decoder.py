"""The decoder of the CPU engines: an engine folder, compiled by OpenVINO, over KV block tensors that are ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from tandem.errors import EngineFailure, SetupError
from tandem.models.config import parse_hf_config
from tandem.models.decoder import DecoderBatch, DecoderInfo, DecoderOutput
from tandem.models.graph import LOGITS
from tandem.models.paged import ARGMAX, ENTROPY, LOG_SUM_EXP, to_paged

KV_CACHE_DTYPES = ("f32", "f16", "u8")
_KEY_CACHE, _VALUE_CACHE = "key_cache.", "value_cache."
_DYNAMIC_QUANTIZATION_GROUP = 32  # the plugin's own default

_BATCH_FIELDS: dict[str, type[np.integer[Any]]] = {
    "input_ids": np.int64,
    "position_ids": np.int64,
    "past_lens": np.int32,
    "subsequence_begins": np.int32,
    "block_indices": np.int32,
    "block_indices_begins": np.int32,
    "max_context_len": np.int32,
    "sample_idx": np.int64,
}
_OUTPUTS = (LOGITS, LOG_SUM_EXP, ENTROPY, ARGMAX)


def load_decoder(
    engine_dir: Path,
    *,
    kv_cache_dtype: str = "f16",
    num_blocks: int,
    num_threads: int,
    max_seq_len: int | None = None,
    has_dynamic_quantization: bool = False,
) -> OpenVinoDecoder:
    """Compile the engine in ``engine_dir`` and allocate ``num_blocks`` KV blocks per layer.

    ``max_seq_len`` None means: what the model was trained for. Greedy tokens do not depend on the make-up of a batch, with two
    exceptions: KV type ``u8``, and ``has_dynamic_quantization``, which rounds the activations in front of compressed weights to
    8 bits. Rounding blows the last-bit differences between batch shapes up to the size of its step, so near ties fall differently.
    It is worth its price where throughput matters more: with int8 weights on a CPU with VNNI, 16 sequences take 31 ms a step
    instead of 52 and a prefill half the time, at 1.3 % more perplexity; one sequence is as fast without (10 ms).
    Raises: SetupError when the folder or a value is not right.
    """
    if kv_cache_dtype not in KV_CACHE_DTYPES:
        raise SetupError(f"kv_cache_dtype is {kv_cache_dtype!r}; supported: {', '.join(KV_CACHE_DTYPES)}")
    if num_blocks < 1 or num_threads < 1:
        raise SetupError(f"num_blocks is {num_blocks} and num_threads {num_threads}; both must be at least 1")
    longest = _trained_length(engine_dir)
    if max_seq_len is None:
        max_seq_len = longest
    if not 1 <= max_seq_len <= longest:
        raise SetupError(f"max_seq_len is {max_seq_len}; the model in {engine_dir} takes 1 to {longest} tokens")
    properties = {
        "INFERENCE_PRECISION_HINT": "f32",  # else bf16 is taken silently where the CPU has it
        "KV_CACHE_PRECISION": kv_cache_dtype,
        # For u8: keys scaled per token, as values are, so that what is stored of a token does not depend on its neighbours. The
        # plugin's default scales per channel over the tokens of a block: results then depend on how a prompt was cut into chunks.
        "KEY_CACHE_QUANT_MODE": "BY_TOKEN",
        "INFERENCE_NUM_THREADS": num_threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,  # several engine processes share the cores; pinned, they would all want the first ones
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": _DYNAMIC_QUANTIZATION_GROUP if has_dynamic_quantization else 0,
    }
    try:
        core = ov.Core()
        model = core.read_model(engine_dir / "model.xml")
        to_paged(model)
        compiled = core.compile_model(model, "CPU", properties)
    except RuntimeError as error:
        raise SetupError(f"{engine_dir}: OpenVINO cannot load the engine ({_last_line(error)}); rebuild it") from error
    return OpenVinoDecoder(compiled, num_blocks=num_blocks, max_seq_len=max_seq_len)


class OpenVinoDecoder:
    """Implements :class:`tandem.models.decoder.Decoder`. Owns the compiled model and the KV memory."""

    def __init__(self, compiled: ov.CompiledModel, *, num_blocks: int, max_seq_len: int) -> None:
        self._request = compiled.create_infer_request()
        self._caches = _allocate_caches(compiled, self._request, num_blocks)
        value_shape = self._caches[f"{_VALUE_CACHE}0"].shape  # [num_blocks, kv heads, block_size, row]
        self._info = DecoderInfo(
            vocab_size=compiled.output(LOGITS).partial_shape[-1].get_length(),
            block_size=value_shape[2],
            num_blocks=num_blocks,
            max_seq_len=max_seq_len,
            kv_bytes_per_token=sum(cache.nbytes for cache in self._caches.values()) // (num_blocks * value_shape[2]),
        )
        self._ports = tuple(
            _InputPort(port.any_name, index) for index, port in enumerate(compiled.inputs) if port.any_name in _BATCH_FIELDS
        )
        names = [port.any_name for port in compiled.outputs]
        self._output_index = tuple(names.index(name) for name in _OUTPUTS)

    @property
    def info(self) -> DecoderInfo:
        return self._info

    def forward(self, batch: DecoderBatch) -> DecoderOutput:
        # The kernels trust these sizes; a wrong one would read or write memory that is not ours.
        assert len(batch.position_ids) == len(batch.input_ids) == batch.subsequence_begins[-1]
        assert len(batch.block_indices) == batch.block_indices_begins[-1]
        request = self._request
        try:
            for port in self._ports:
                port.load(request, getattr(batch, port.name))
            request.infer(share_inputs=True, share_outputs=True)
        except RuntimeError as error:
            raise EngineFailure(f"the forward pass failed: {_last_line(error)}") from error
        logits, log_sum_exp, entropy, argmax = (request.get_output_tensor(index).data for index in self._output_index)
        return DecoderOutput(logits=logits, log_sum_exp=log_sum_exp, entropy=entropy, argmax=argmax)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            for cache in self._caches.values():
                cache[target] = cache[source]


class _InputPort:
    """One input of the compiled model. Keeps the tensor while the shape stays, as it does from decode step to decode step:
    straight after a forward pass every call into the runtime finds cold caches and costs ten times its usual price.
    """

    __slots__ = ("_array", "_index", "_shape", "name")

    def __init__(self, name: str, index: int) -> None:
        self.name = name
        self._index = index
        self._shape: tuple[int, ...] | None = None
        self._array: npt.NDArray[np.integer[Any]] = np.empty(0, dtype=np.int32)

    def load(self, request: ov.InferRequest, value: npt.NDArray[np.integer[Any]] | int) -> None:
        array = np.asarray(value, dtype=_BATCH_FIELDS[self.name])
        if array.shape == self._shape:
            self._array[...] = array
            return
        fresh = array.copy()  # shared with the runtime until the shape changes
        request.set_input_tensor(self._index, ov.Tensor(fresh, shared_memory=True))
        self._array, self._shape = fresh, array.shape


def _allocate_caches(compiled: ov.CompiledModel, request: ov.InferRequest, num_blocks: int) -> dict[str, Any]:
    """One tensor per layer for keys and one for values, zeroed so that the memory is really there before the first request."""
    caches: dict[str, Any] = {}
    for port in compiled.inputs:
        if not port.any_name.startswith((_KEY_CACHE, _VALUE_CACHE)):
            continue
        shape = [num_blocks, *(dimension.get_length() for dimension in list(port.partial_shape)[1:])]
        try:
            tensor = ov.Tensor(port.element_type, ov.Shape(shape))
        except (RuntimeError, MemoryError) as error:
            raise SetupError(f"no memory for {num_blocks} KV blocks; lower num_blocks or free memory") from error
        tensor.data.fill(0)
        request.set_tensor(port, tensor)
        caches[port.any_name] = tensor.data
    return caches


def _trained_length(engine_dir: Path) -> int:
    path = engine_dir / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SetupError(f"{path}: the engine's config cannot be read ({error}); rebuild the engine") from error
    return parse_hf_config(raw, str(path)).max_position_embeddings


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
