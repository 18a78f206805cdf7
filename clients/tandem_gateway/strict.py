"""The strict base of request bodies and the types they share."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MAX_STOP_CHARS = 256
MAX_INT32 = 2**31 - 1


class Strict(BaseModel):
    # Literals are matched exactly, numbers are never made from text, NaN and Infinity are no numbers.
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)


def _valid_text(value: str) -> str:
    value.encode()  # a lone surrogate raises UnicodeEncodeError, a ValueError
    return value


Text = Annotated[str, AfterValidator(_valid_text)]
NonEmpty = Annotated[Text, Field(min_length=1)]
StopString = Annotated[Text, Field(min_length=1, max_length=MAX_STOP_CHARS)]
TokenCount = Annotated[int, Field(ge=1, le=MAX_INT32)]
ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
