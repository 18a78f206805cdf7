"""The route classifier of Triton: tensors in front of :class:`tandem.routing.classifier.RouteClassifier`.

Triton's dynamic batcher hands over what has arrived; each text is computed on its own, so a neighbour never changes a result.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
import triton_python_backend_utils as pb_utils

from tandem.config import route_classifier_config, tandem_home
from tandem.errors import SetupError
from tandem.protocol import ROUTE_TASKS
from tandem.routing.classifier import ClassifierResult, RouteClassifier
from tandem.triton.errors_table import from_exception, to_triton
from tandem.triton.logs import use_triton_log
from tandem.triton.model_args import model_parameters
from tandem.triton.responses import read_inputs
from tandem.triton.tensors import Array, RowReader, count_rows, texts


class RouteClassifierModel:
    """Prompts in, probabilities out; not decoupled. A request that is wrong fails alone."""

    @classmethod
    def load(cls, args: Mapping[str, str]) -> RouteClassifierModel:
        """Build from what Triton gives ``initialize``. Raises: TritonModelException with one sentence."""
        use_triton_log(args["model_name"])
        try:
            config = route_classifier_config(args["model_name"], model_parameters(args), tandem_home(os.environ))
            return cls(RouteClassifier.load(config.encoder_dir, config.head_dir))
        except SetupError as error:
            raise pb_utils.TritonModelException(error.message) from None

    def __init__(self, classifier: RouteClassifier) -> None:
        """Raises: SetupError for a head with other classes than the protocol's. Runs one text to get warm."""
        if classifier.tasks != ROUTE_TASKS:
            raise SetupError(f"the route head knows the tasks {classifier.tasks}; the protocol has {ROUTE_TASKS}")
        self._classifier = classifier
        classifier.score(["warm up"])

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._answer(request) for request in requests]

    def close(self) -> None:
        """Nothing is held."""

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        try:
            inputs = read_inputs(request)
            prompts = [RowReader(inputs, row).text("text_input") or "" for row in range(count_rows(inputs))]
            outputs = encode_results(self._classifier.score(prompts))
        except Exception as error:
            return pb_utils.InferenceResponse(output_tensors=[], error=to_triton(from_exception(error, "the route classifier")))
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor(name, array) for name, array in outputs.items()])


def encode_results(results: Sequence[ClassifierResult]) -> dict[str, Array]:
    """One row per result. fast_suffices [rows, 1], task_probs [rows, num_tasks], task [rows, 1]"""
    return {
        "fast_suffices": np.array([[result.fast_suffices] for result in results], np.float32),
        "task_probs": np.array([result.task_probs for result in results], np.float32),
        "task": texts([result.task for result in results]),
    }
