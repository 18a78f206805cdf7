"""A gRPC server that speaks Triton's protocol and answers for the model ``tandem``; no Triton needed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import serialize_byte_tensor

from tandem.protocol import TANDEM, DType

Answers = Callable[[dict[str, Any], Any], Iterator[Any]]


def decode_inputs(request: Any) -> dict[str, np.ndarray]:
    """Input tensors by name, with their shapes; checks data types and batch dimension against the protocol."""
    tensors = {}
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        spec = TANDEM.input(tensor.name)
        assert tensor.datatype == spec.dtype.value
        if spec.dtype is DType.STRING:
            values, offset = [], 0
            while offset < len(raw):
                size = int.from_bytes(raw[offset : offset + 4], "little")
                values.append(raw[offset + 4 : offset + 4 + size].decode())
                offset += 4 + size
            array = np.array(values, dtype=object)
        else:
            array = np.frombuffer(raw, dtype={"BOOL": "?", "INT32": "i4", "FP32": "f4", "UINT64": "u8"}[tensor.datatype])
        tensors[tensor.name] = array.reshape(list(tensor.shape))
    return tensors


def response(text: str, finish: str = "", *, count: int = 1, index: int = 0, content: str = "", path: str = "fast") -> Any:
    """One response with every output of the contract."""
    values: dict[str, Any] = {
        "text_output": text,
        "finish_reason": finish,
        "batch_index": 0,
        "sequence_index": index,
        "num_input_tokens": 7,
        "num_output_tokens": count,
        "num_cached_tokens": 0,
        "output_log_probs": [],
        "log_probs_content": content,
        "served_path": path,
        "engine": "fast_int4" if path == "fast" else "slow",
        "decision": "rule: test",
        "decision_record": '{"version": 1}',
    }
    message = service_pb2.ModelInferResponse(model_name="tandem")
    for spec in TANDEM.outputs:
        value = values[spec.name]
        if spec.dtype is DType.STRING:
            raw = serialize_byte_tensor(np.array([value.encode()], dtype=object)).item()
            shape = [1, 1]
        else:
            array = np.array(value, dtype="i4" if spec.dtype is DType.INT32 else "f4").reshape(1, -1)
            raw, shape = array.tobytes(), list(array.shape)
        message.outputs.add(name=spec.name, datatype=spec.dtype.value, shape=shape)
        message.raw_output_contents.append(raw)
    return service_pb2.ModelStreamInferResponse(infer_response=message)


def hello(tensors: dict[str, Any], context: Any) -> Iterator[Any]:
    yield response("Hello")
    yield response(" world", "stop", count=2)


@dataclass
class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):
    answers: Answers = hello
    requests: list[dict[str, Any]] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    port: int = 0
    is_ready: bool = True
    _stop_events: dict[str, threading.Event] = field(default_factory=dict)

    def ModelStreamInfer(self, request_iterator: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        for request in request_iterator:
            tensors = decode_inputs(request)
            assert request.model_name == "tandem"
            if "stop" in tensors:
                self.stops.append(request.id)
                self._stop_events.setdefault(request.id, threading.Event()).set()
                yield service_pb2.ModelStreamInferResponse(infer_response=service_pb2.ModelInferResponse(id=request.id))
                continue
            self.requests.append({"id": request.id, **tensors})
            stopped = self._stop_events.setdefault(request.id, threading.Event())
            for answer in self.answers(tensors, context):
                if stopped.is_set():
                    break
                yield answer
            if request.parameters["triton_enable_empty_final_response"].bool_param:
                final = service_pb2.ModelInferResponse(id=request.id)
                final.parameters["triton_final_response"].bool_param = True
                yield service_pb2.ModelStreamInferResponse(infer_response=final)

    def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        return service_pb2.ServerReadyResponse(ready=self.is_ready)

    def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        return service_pb2.ModelReadyResponse(ready=request.name != "slow")


def endless(tensors: dict[str, Any], context: Any) -> Iterator[Any]:
    for number in range(1, 3000):
        yield response("x", count=number)
        time.sleep(0.005)


@contextmanager
def running_triton() -> Iterator[FakeTriton]:
    fake = FakeTriton()
    server = grpc.server(ThreadPoolExecutor(8))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(fake, server)
    fake.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield fake
    finally:
        server.stop(None).wait()
