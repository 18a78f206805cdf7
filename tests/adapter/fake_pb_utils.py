"""A stand-in for the module that Triton puts into a model's process, as strict as the real one where it matters.

A response sender refuses to be used after the final flag, as the real one does; what was sent is recorded in order.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class TritonModelException(Exception):
    pass


class TritonError:
    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = (
        "UNKNOWN",
        "INTERNAL",
        "NOT_FOUND",
        "INVALID_ARG",
        "UNAVAILABLE",
        "UNSUPPORTED",
        "ALREADY_EXISTS",
        "CANCELLED",
    )

    def __init__(self, message: str, code: str = "INTERNAL") -> None:
        self._message = message
        self._code = code

    def message(self) -> str:
        return self._message

    def code(self) -> str:
        return self._code


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        assert isinstance(array, np.ndarray), name
        self._name = name
        self._array = array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class InferenceResponse:
    def __init__(self, output_tensors: list[Tensor], error: TritonError | None = None) -> None:
        self._output_tensors = output_tensors
        self._error = error

    def output_tensors(self) -> list[Tensor]:
        return self._output_tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError:
        assert self._error is not None
        return self._error


@dataclass
class Sent:
    """One call of the response sender."""

    outputs: dict[str, np.ndarray]
    error: TritonError | None
    is_final: bool


class ResponseSender:
    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.has_ended = threading.Event()
        self.cancelled = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        if self.has_ended.is_set():
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        is_final = flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if response is None:
            assert is_final, "a send without a response must carry the final flag"
            self.sent.append(Sent({}, None, True))
        else:
            outputs = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
            self.sent.append(Sent(outputs, response.error() if response.has_error() else None, is_final))
        if is_final:
            self.has_ended.set()

    def is_cancelled(self) -> bool:
        if self.has_ended.is_set():
            raise TritonModelException("the sender is closed")
        return self.cancelled


@dataclass
class Request:
    """What execute gets."""

    tensors: dict[str, np.ndarray]
    id: str = ""
    outputs: tuple[str, ...] = ()
    request_parameters: dict[str, Any] = field(default_factory=dict)
    sender: ResponseSender = field(default_factory=ResponseSender)

    def inputs(self) -> list[Tensor]:
        return [Tensor(name, array) for name, array in self.tensors.items()]

    def request_id(self) -> str:
        return self.id

    def requested_output_names(self) -> set[str]:
        return set(self.outputs)

    def parameters(self) -> str:
        return json.dumps(self.request_parameters)

    def get_response_sender(self) -> ResponseSender:
        return self.sender

    def wait(self, timeout_s: float = 20.0) -> list[Sent]:
        """Everything that was sent, once the final flag is; asserts that it is the only one and the last."""
        assert self.sender.has_ended.wait(timeout_s), f"no final response; sent so far: {self.sender.sent}"
        assert [sent.is_final for sent in self.sender.sent] == [False] * (len(self.sender.sent) - 1) + [True]
        return self.sender.sent


Handler = Callable[["InferenceRequest"], Iterable[InferenceResponse]]


class InferenceRequest:
    """A BLS request; ``handlers`` holds what plays each child model."""

    handlers: ClassVar[dict[str, Handler]] = {}

    def __init__(self, model_name: str, inputs: list[Tensor], requested_output_names: list[str], request_id: str = "") -> None:
        self.model_name = model_name
        self.tensors = {tensor.name(): tensor.as_numpy() for tensor in inputs}
        self.requested_output_names = requested_output_names
        self.request_id = request_id

    def exec(self, decoupled: bool = False) -> Iterable[InferenceResponse]:
        assert decoupled
        return self.handlers[self.model_name](self)


class Metric:
    def __init__(self, labels: dict[str, str]) -> None:
        self.labels = labels
        self.value = 0.0

    def set(self, value: float) -> None:
        self.value = value

    def increment(self, value: float) -> None:
        assert value > 0
        self.value += value


class MetricFamily:
    GAUGE = "gauge"
    COUNTER = "counter"

    def __init__(self, name: str, description: str, kind: str) -> None:
        self.name, self.description, self.kind = name, description, kind

    def Metric(self, labels: dict[str, str]) -> Metric:  # noqa: N802  (Triton's name)
        return Metric(labels)


class Logger:
    lines: ClassVar[list[tuple[str, str]]] = []

    @classmethod
    def log_error(cls, text: str) -> None:
        cls.lines.append(("error", text))

    @classmethod
    def log_warn(cls, text: str) -> None:
        cls.lines.append(("warning", text))

    @classmethod
    def log_info(cls, text: str) -> None:
        cls.lines.append(("info", text))
