"""Errors of the models name tensors; callers know the fields of the API. This turns the one into the other."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.errors import TandemError, WireError

_COMMON = {
    "logit_bias_ids": "logit_bias",
    "logit_bias_values": "logit_bias",
    "num_return_sequences": "n",
    "stop_words": "stop",
    "return_log_probs": "logprobs",
}
CHAT_FIELDS: Mapping[str, str] = {**_COMMON, "input_ids": "messages", "prompt_ids": "messages"}
COMPLETION_FIELDS: Mapping[str, str] = {
    **_COMMON,
    "input_ids": "prompt",
    "prompt_ids": "prompt",
    "text_input": "prompt",
    "top_logprobs": "logprobs",
}


def name_as_asked(error: TandemError, fields: Mapping[str, str]) -> TandemError:
    """The error with the caller's name for its field, in ``field`` and at the start of the message."""
    name = fields.get(error.field or "")
    if name is None:
        return error
    return WireError(
        error.message.replace(f"{error.field}:", f"{name}:", 1),
        code=error.code,
        field=name,
        triton_code=error.triton_code,
        http_status=error.http_status,
        is_retryable=error.is_retryable,
    )
