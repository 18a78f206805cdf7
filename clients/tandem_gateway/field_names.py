"""Errors of the models name tensors; callers know the fields of the API. This turns the one into the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandem.errors import TandemError, WireError
from tandem_gateway.guides import AskedGuide

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


_GUIDE_FIELDS = ("guided_decoding_guide_type", "guided_decoding_guide")


@dataclass(frozen=True, slots=True)
class FieldNames:
    """What one caller calls the tensors: ``by_tensor``, and the fields its guide was made of."""

    by_tensor: Mapping[str, str]
    guide: AskedGuide | None = None


def name_as_asked(error: TandemError, names: FieldNames) -> TandemError:
    """The error with the caller's name for its field, in ``field`` and at the start of the message."""
    tensor = error.field or ""
    name, message = names.by_tensor.get(tensor), error.message
    if tensor in _GUIDE_FIELDS and names.guide is not None:
        name, message = _in_guide(names.guide, tensor, message)
    if name is None:
        return error
    return WireError(
        message.replace(f"{tensor}:", f"{name}:", 1),
        code=error.code,
        field=name,
        triton_code=error.triton_code,
        http_status=error.http_status,
        is_retryable=error.is_retryable,
    )


def _in_guide(asked: AskedGuide, tensor: str, message: str) -> tuple[str, str]:
    """The field that a place in the guide belongs to, and the message with that place counted from the field."""
    for path, field in asked.places:
        start = f"{tensor}: got {path}"
        rest = message.removeprefix(start)
        # "$.structures[1]" is no beginning of "$.structures[10]".
        if rest != message and not rest[:1].isalnum():
            return field, f"{tensor}: got ${rest}"
    return asked.field, message
