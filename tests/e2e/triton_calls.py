"""Engine calls by the tensor contract over gRPC streaming, as a user of tritonclient writes them."""

from __future__ import annotations

import queue
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tritonclient import grpc as grpcclient
from tritonclient.utils import np_to_triton_dtype

END_OF_TURN = 2
# <|im_start|>user\nCount from one to twenty.<|im_end|>\n<|im_start|>assistant\n
CHAT_PROMPT = (1, 4093, 198, 14200, 429, 582, 288, 10588, 30, 2, 198, 1, 520, 9531, 198)


@dataclass(frozen=True)
class Reply:
    """One response, or the error that ended the stream."""

    outputs: dict[str, np.ndarray]
    is_final: bool
    error: Any = None


class Stream:
    """One gRPC stream with one request. Close it, or use it in a ``with`` block."""

    def __init__(self, url: str, model: str, tensors: Mapping[str, np.ndarray], request_id: str):
        self.request_id = request_id
        self._replies: queue.SimpleQueue = queue.SimpleQueue()
        self._client = grpcclient.InferenceServerClient(url)
        self._client.start_stream(lambda result, error: self._replies.put((result, error)))
        inputs = []
        for name, array in tensors.items():
            tensor = grpcclient.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        self._client.async_stream_infer(model, inputs, request_id=request_id, enable_empty_final_response=True)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def cancel(self) -> None:
        """What a client does that goes away."""
        self._client.stop_stream(cancel_requests=True)
        self._client.close()

    def next(self, timeout_s: float = 60.0) -> Reply:
        result, error = self._replies.get(timeout=timeout_s)
        if error is not None:
            return Reply({}, True, error)
        response = result.get_response()
        assert response.id == self.request_id
        outputs = {output.name: result.as_numpy(output.name) for output in response.outputs}
        return Reply(outputs, response.parameters["triton_final_response"].bool_param)

    def replies(self, timeout_s: float = 60.0) -> Iterator[Reply]:
        while True:
            reply = self.next(timeout_s)
            yield reply
            if reply.is_final:
                return


def engine_tensors(prompt: Sequence[int] = CHAT_PROMPT, max_tokens: int = 12, **tensors: np.ndarray) -> dict[str, np.ndarray]:
    """One row; a value that is a number becomes [1, 1] INT32, a bool BOOL, a float FP32."""
    base = {
        "input_ids": np.array([prompt], np.int32),
        "input_lengths": np.array([[len(prompt)]], np.int32),
        "request_output_len": np.array([[max_tokens]], np.int32),
        "end_id": np.array([[END_OF_TURN]], np.int32),
        "streaming": np.array([[True]]),
    }
    return {**base, **{name: _tensor(value) for name, value in tensors.items()}}


def _tensor(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    dtype = np.bool_ if isinstance(value, bool) else np.float32 if isinstance(value, float) else np.int32
    return np.array([[value]], dtype)


def ask(url: str, model: str, tensors: Mapping[str, np.ndarray], request_id: str | None = None) -> list[Reply]:
    """All replies of one request; the last is final or carries the error."""
    with Stream(url, model, tensors, request_id or uuid.uuid4().hex) as stream:
        return list(stream.replies())


def token_ids(replies: Sequence[Reply]) -> list[int]:
    assert replies[-1].error is None, replies[-1].error
    return [token for reply in replies if reply.outputs for token in reply.outputs["output_ids"].reshape(-1).tolist()]


def stop(url: str, model: str, request_id: str) -> list[Reply]:
    """Cancel by the contract's ``stop`` tensor."""
    tensors = {
        "stop": np.array([[True]]),
        "input_lengths": np.array([[0]], np.int32),
        "request_output_len": np.array([[0]], np.int32),
    }
    return ask(url, model, tensors, request_id)
