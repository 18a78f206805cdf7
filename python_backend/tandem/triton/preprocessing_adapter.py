"""The preprocessing model of Triton: tensors in front of :class:`tandem.orchestration.prepare.PromptPreparer`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
import triton_python_backend_utils as pb_utils

from tandem.config import preprocessing_config, tandem_home
from tandem.errors import SetupError
from tandem.orchestration.prepare import PreparedPrompt, PromptInput, PromptPreparer
from tandem.text.tokenizer import Tokenizer
from tandem.triton.errors_table import from_exception, to_triton
from tandem.triton.logs import use_triton_log
from tandem.triton.model_args import model_parameters
from tandem.triton.responses import read_inputs
from tandem.triton.tensors import Array, RowReader, Tensors, count_rows, texts

_STOPPED = PreparedPrompt((), "{}")


class PreprocessingModel:
    """Prompts in, token ids and route features out; not decoupled. A stop passes through with an empty prompt."""

    @classmethod
    def load(cls, args: Mapping[str, str]) -> PreprocessingModel:
        """Build from what Triton gives ``initialize``. Raises: TritonModelException with one sentence."""
        use_triton_log(args["model_name"])
        try:
            config = preprocessing_config(args["model_name"], model_parameters(args), tandem_home(os.environ))
            return cls(PromptPreparer(Tokenizer.load(config.tokenizer_dir), config.max_seq_len))
        except SetupError as error:
            raise pb_utils.TritonModelException(error.message) from None

    def __init__(self, preparer: PromptPreparer) -> None:
        self._preparer = preparer

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        return [self._answer(request) for request in requests]

    def close(self) -> None:
        """Nothing is held."""

    def _answer(self, request: pb_utils.InferenceRequest) -> pb_utils.InferenceResponse:
        try:
            outputs = encode_prompts(self._prepare(read_inputs(request)))
        except Exception as error:
            return pb_utils.InferenceResponse(output_tensors=[], error=to_triton(from_exception(error, "preprocessing")))
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor(name, array) for name, array in outputs.items()])

    def _prepare(self, inputs: Tensors) -> list[PreparedPrompt]:
        readers = [RowReader(inputs, row) for row in range(count_rows(inputs))]
        return [_STOPPED if reader.flag("stop") else self._preparer.prepare(_prompt_input(reader)) for reader in readers]


def _prompt_input(row: RowReader) -> PromptInput:
    return PromptInput(
        text_input=row.text("text_input"),
        messages=row.text("messages"),
        tools=row.text("tools"),
        path=row.text("path") or "auto",
        task=row.text("task") or "",
        api_path=row.text("api_path") or "",
        source=row.text("source") or "",
        threshold=row.number("threshold"),
        slo_ttft_ms=row.number("slo_ttft_ms"),
        slo_tpot_ms=row.number("slo_tpot_ms"),
        session=row.text("session") or "",
    )


def encode_prompts(prompts: Sequence[PreparedPrompt]) -> dict[str, Array]:
    """Rows of unequal length are padded with 0; ``input_lengths`` tells how much is prompt."""
    width = max(len(prompt.input_ids) for prompt in prompts)
    input_ids = np.zeros((len(prompts), width), np.int32)
    for row, prompt in enumerate(prompts):
        input_ids[row, : len(prompt.input_ids)] = prompt.input_ids
    return {
        "input_ids": input_ids,
        "input_lengths": np.array([[len(prompt.input_ids)] for prompt in prompts], np.int32),
        "route_features": texts([prompt.route_features for prompt in prompts]),
    }
