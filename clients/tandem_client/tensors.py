"""Between :mod:`tandem_client.text` and the tensors of ``tandem.protocol.TANDEM``.

Decoding reads the protobuf message directly: it runs once per token, where eleven ``as_numpy`` calls would dominate.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from tritonclient.grpc import InferInput

from tandem.errors import EngineFailure
from tandem.protocol import TANDEM, DType, TensorSpec
from tandem_client.text import TextChunk, TextRequest

_NUMPY: dict[DType, Any] = {
    DType.BOOL: np.bool_,
    DType.INT32: np.int32,
    DType.UINT64: np.uint64,
    DType.FP32: np.float32,
    DType.STRING: np.object_,
}
_INT32 = struct.Struct("<i")
_LENGTH_BYTES = 4


def encode_request(request: TextRequest) -> list[InferInput]:
    """The input tensors of one request; every tensor is [num_rows, ...], rows share all but the prompt."""
    sampling = request.sampling
    values: dict[str, Any] = {name: getattr(sampling, name) for name in sampling.__slots__}
    values.update(
        messages=request.messages,
        tools=request.tools,
        guided_decoding_guide_type=request.guide and request.guide.type,
        guided_decoding_guide=request.guide and request.guide.text,
        path=request.path,
        task=request.task,
        api_path=request.api_path,
        source=request.source,
        threshold=request.threshold,
        slo_ttft_ms=request.slo_ttft_ms,
        slo_tpot_ms=request.slo_tpot_ms,
        session=request.session,
        stream=request.stream,
        cache_salt=request.cache_salt,
    )
    inputs = []
    for spec in TANDEM.inputs:
        if spec.name == "text_input" and request.prompts:
            inputs.append(_tensor(spec, [[prompt.encode()] for prompt in request.prompts]))
            continue
        value = values.get(spec.name)
        if value is None or value == ():
            continue
        row = [_element(item) for item in value] if isinstance(value, tuple) else [_element(value)]
        inputs.append(_tensor(spec, [row] * request.num_rows))
    return inputs


def encode_stop() -> list[InferInput]:
    """The tensors that cancel the running request of the same Triton request id."""
    return [_tensor(TANDEM.input("stop"), [[True]])]


def decode_response(response: Any) -> TextChunk | None:
    """A ``ModelInferResponse`` as a chunk, or None for an empty final response.

    Raises: EngineFailure when a tensor of the contract is missing or unreadable.
    """
    if not response.outputs:
        return None
    raw = dict(zip((output.name for output in response.outputs), response.raw_output_contents, strict=True))
    try:
        return TextChunk(
            text=_text(raw["text_output"]),
            finish_reason=_text(raw["finish_reason"]),
            batch_index=_int(raw["batch_index"]),
            sequence_index=_int(raw["sequence_index"]),
            num_input_tokens=_int(raw["num_input_tokens"]),
            num_output_tokens=_int(raw["num_output_tokens"]),
            num_cached_tokens=_int(raw["num_cached_tokens"]),
            log_probs_content=_text(raw["log_probs_content"]),
            path=_text(raw["served_path"]),
            engine=_text(raw["engine"]),
            decision=_text(raw["decision"]),
            decision_record=_text(raw["decision_record"]),
        )
    except (KeyError, struct.error, UnicodeDecodeError) as error:
        raise EngineFailure(f"the answer of the model breaks its tensor contract ({type(error).__name__}: {error})") from error


def _tensor(spec: TensorSpec, rows: list[list[Any]]) -> InferInput:
    array = np.array(rows, dtype=_NUMPY[spec.dtype])
    tensor = InferInput(spec.name, list(array.shape), spec.dtype.value)
    tensor.set_data_from_numpy(array)
    return tensor


def _element(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def _int(raw: bytes) -> int:
    return int(_INT32.unpack(raw)[0])


def _text(raw: bytes) -> str:
    """One BYTES element: four bytes of length, then UTF-8."""
    (length,) = _INT32.unpack_from(raw)
    if length != len(raw) - _LENGTH_BYTES:
        raise struct.error(f"{length} bytes announced, {len(raw) - _LENGTH_BYTES} sent")
    return raw[_LENGTH_BYTES:].decode()
