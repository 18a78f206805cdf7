"""The route classifier's adapter: rows and requests answered on their own, errors per request."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tandem.errors import SetupError, from_wire
from tandem.protocol import ROUTE_TASKS
from tandem.routing.classifier import RouteClassifier
from tests.adapter.fake_pb_utils import Request
from tests.classifier_factories import FakeEncoder, make_head


def make_model(head=None):
    from tandem.triton.route_classifier_adapter import RouteClassifierModel

    return RouteClassifierModel(RouteClassifier(FakeEncoder(), head or make_head()))


def texts(*values):
    return {"text_input": np.array([[value.encode() if isinstance(value, str) else value] for value in values], object)}


def outputs(response):
    assert not response.has_error(), response.error().message()
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}


def test_rows_when_batched_then_each_is_what_it_is_alone():
    together, alone = make_model().execute(
        [Request(texts("Translate this.", "Prove that it holds.")), Request(texts("Prove that it holds."))]
    )
    both, one = outputs(together), outputs(alone)
    assert both["fast_suffices"].shape == (2, 1)
    assert both["fast_suffices"].dtype == both["task_probs"].dtype == np.float32
    assert both["task_probs"].shape == (2, len(ROUTE_TASKS))
    assert both["fast_suffices"][1] == one["fast_suffices"][0]
    assert both["task"][1, 0].decode() in ROUTE_TASKS


def test_request_when_not_utf8_then_only_it_fails():
    bad, good = make_model().execute([Request(texts(b"\xff")), Request(texts("hello"))])
    assert from_wire(bad.error().message()).field == "text_input"
    assert 0.0 <= outputs(good)["fast_suffices"].item() <= 1.0


def test_head_when_of_other_tasks_then_refused():
    with pytest.raises(SetupError, match="protocol"):
        make_model(replace(make_head(), tasks=tuple(reversed(ROUTE_TASKS))))
