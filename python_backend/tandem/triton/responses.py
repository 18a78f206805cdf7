"""The answers to one request of a decoupled model: any number of responses, exactly one with the final flag."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import triton_python_backend_utils as pb_utils

from tandem.errors import TandemError
from tandem.triton.errors_table import to_triton
from tandem.triton.tensors import Array


class ResponseStream:
    """Owns Triton's response sender of one request. Thread-safe; whatever is sent after the final flag is dropped.

    The lock also keeps ``is_cancelled`` away from a sender whose request Triton has released with the final flag.
    """

    def __init__(self, request: pb_utils.InferenceRequest) -> None:
        self._sender = request.get_response_sender()
        self._lock = threading.Lock()
        self._is_open = True

    @property
    def is_open(self) -> bool:
        return self._is_open

    def send(self, tensors: Mapping[str, Array], *, is_final: bool = False) -> None:
        """One response with data."""
        outputs = [pb_utils.Tensor(name, array) for name, array in tensors.items()]
        self._send(pb_utils.InferenceResponse(output_tensors=outputs), is_final=is_final)

    def fail(self, error: TandemError, *, is_final: bool = True) -> None:
        """One response with an error; not final when other rows of the request go on."""
        self._send(pb_utils.InferenceResponse(output_tensors=[], error=to_triton(error)), is_final=is_final)

    def finish(self) -> None:
        """The final flag without data, unless it was sent already."""
        self._send(None, is_final=True)

    def is_cancelled(self) -> bool:
        """True when the client has gone away from a request that is still open."""
        with self._lock:
            return self._is_open and bool(self._sender.is_cancelled())

    def _send(self, response: pb_utils.InferenceResponse | None, *, is_final: bool) -> None:
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_final else 0
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False  # stays so when the send raises: Triton has given the request up then
            if response is None:
                self._sender.send(flags=flags)
            else:
                self._sender.send(response, flags=flags)
            self._is_open = not is_final


def read_inputs(request: pb_utils.InferenceRequest) -> dict[str, Array]:
    """The input tensors of a request by name, with their batch dimension."""
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def read_outputs(response: pb_utils.InferenceResponse) -> dict[str, Array]:
    """The output tensors of a child's response by name; empty for one that carries the final flag only."""
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
