"""Triton's own client over gRPC streaming, past the gateway: python triton_grpc_stream.py [HOST:PORT]"""

import os
import queue
import sys

import numpy as np
import tritonclient.grpc as grpc

address = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TRITON_GRPC", "127.0.0.1:8001")


def tensor(name: str, kind: str, value: object) -> grpc.InferInput:
    """A tensor of shape [1, 1]: the batch dimension comes first."""
    array = np.array([[value]], dtype={"BYTES": object, "INT32": np.int32, "FP32": np.float32, "BOOL": bool}[kind])
    made = grpc.InferInput(name, [1, 1], kind)
    made.set_data_from_numpy(array)
    return made


answers: queue.Queue = queue.Queue()
inputs = [
    tensor("text_input", "BYTES", b"The capital of France is"),
    tensor("max_tokens", "INT32", 16),
    tensor("temperature", "FP32", 0.0),
    tensor("stream", "BOOL", True),
]

with grpc.InferenceServerClient(address) as client:
    client.start_stream(lambda result, error: answers.put((result, error)))
    # The request id is what a later request with the tensor stop=true would cancel.
    client.async_stream_infer("tandem", inputs, request_id="example-1")
    while True:
        result, error = answers.get(timeout=60)
        if error is not None:
            raise error
        print(result.as_numpy("text_output").item().decode(), end="", flush=True)
        if finish_reason := result.as_numpy("finish_reason").item().decode():
            break
    path, engine = (result.as_numpy(name).item().decode() for name in ("served_path", "engine"))
    print(f"\n[{path}/{engine}, {finish_reason}, {result.as_numpy('num_output_tokens').item()} tokens]")
    client.stop_stream()
