"""The route classifier on the real server: equal to the class in process, whatever the batch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tritonclient import grpc as grpcclient

from tandem.protocol import ROUTE_TASKS
from tandem.routing.classifier import RouteClassifier
from tests.e2e.conftest import RunningTriton

pytestmark = [pytest.mark.e2e, pytest.mark.weights]
PROMPTS = ("What is the capital of Peru?", "证明根号2是无理数。", "Prove that the harmonic series diverges. " * 40, "x", "")


def infer(client: grpcclient.InferenceServerClient, *prompts: str) -> grpcclient.InferResult:
    tensor = grpcclient.InferInput("text_input", [len(prompts), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[prompt.encode()] for prompt in prompts], object))
    return client.infer("route_classifier", [tensor])


def test_route_classifier_simple(triton: RunningTriton, engine_home):
    expected = RouteClassifier.load(engine_home / "engines" / "route_classifier" / "current").score(PROMPTS)
    with grpcclient.InferenceServerClient(triton.config.grpc_url) as client:
        together = infer(client, *PROMPTS)
        for row, (prompt, result) in enumerate(zip(PROMPTS, expected, strict=True)):
            alone = infer(client, prompt)
            assert alone.as_numpy("fast_suffices").item() == pytest.approx(result.fast_suffices, abs=1e-6)
            assert alone.as_numpy("task").item().decode() == result.task
            assert alone.as_numpy("task_probs").shape == (1, len(ROUTE_TASKS))
            assert together.as_numpy("fast_suffices")[row, 0] == alone.as_numpy("fast_suffices").item()


def test_route_classifier_load(triton: RunningTriton):
    """n equal prompts, all at once through the batcher: n equal answers."""
    with grpcclient.InferenceServerClient(triton.config.grpc_url) as client, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda prompt: infer(client, prompt).as_numpy("fast_suffices").item(), ["Compare two ways."] * 32))
    assert len(answers) == 32
    assert len(set(answers)) == 1, answers


def test_route_classifier_invalid(triton: RunningTriton):
    with grpcclient.InferenceServerClient(triton.config.grpc_url) as client:
        tensor = grpcclient.InferInput("text_input", [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[b"\xff\xfe"]], object))
        with pytest.raises(Exception, match="text_input"):
            client.infer("route_classifier", [tensor])
