"""The preprocessing adapter: rows padded, errors per request, a stop passed through."""

from __future__ import annotations

import json

import numpy as np

from tandem.errors import from_wire
from tandem.orchestration.prepare import PromptPreparer
from tests.adapter.fake_pb_utils import Request
from tests.text_factories import make_tokenizer

TOKENIZER = make_tokenizer()


def preprocess(*tensors: dict):
    from tandem.triton.preprocessing_adapter import PreprocessingModel

    model = PreprocessingModel(PromptPreparer(TOKENIZER, 64))
    responses = model.execute([Request(each) for each in tensors])
    assert len(responses) == len(tensors)
    return responses


def texts(*values):
    return np.array([[value.encode() if isinstance(value, str) else value] for value in values], object)


def outputs(response):
    assert not response.has_error(), response.error().message()
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}


def test_rows_when_of_unequal_length_then_padded_with_their_lengths():
    (response,) = preprocess({"text_input": texts("hi", "hello there")})
    result = outputs(response)
    lengths = result["input_lengths"].reshape(-1).tolist()
    assert result["input_ids"].shape == (2, max(lengths))
    assert result["input_ids"].dtype == np.int32
    assert lengths == [len(TOKENIZER.encode(text, add_special_tokens=True)) for text in ("hi", "hello there")]
    assert [isinstance(json.loads(row[0]), dict) for row in result["route_features"]] == [True, True]


def test_stop_when_sent_then_passes_with_an_empty_prompt():
    (response,) = preprocess({"stop": np.ones((1, 1), bool)})
    result = outputs(response)
    assert result["input_ids"].shape == (1, 0)
    assert result["input_lengths"].tolist() == [[0]]


def test_request_when_wrong_then_only_it_fails_and_names_the_tensor():
    bad_utf8, neither, good = preprocess(
        {"text_input": texts(b"\xff")}, {"task": texts("x")}, {"text_input": texts("hi"), "path": texts("slow")}
    )
    assert from_wire(bad_utf8.error().message()).field == "text_input"
    assert neither.error().code() == "INVALID_ARG"
    assert "slow" in outputs(good)["route_features"].item().decode()
