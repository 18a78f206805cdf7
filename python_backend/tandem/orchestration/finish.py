"""Why a sequence ended, inferred from what the engine contract does say.

The ``tensorrt_llm`` tensors carry no finish reason. What they carry is enough: an end token is not part of the output, so a
sequence that ended by it stops short of its limit, with a delta without tokens when streaming. See TensorRT-LLM's ``getResult``
(streamed tokens are those after the last sent position) and the sampling kernels (no length step at the end token).
"""

from __future__ import annotations

from tandem.types import FinishReason


def inferred_finish(
    *, num_new_tokens: int, num_tokens: int, max_tokens: int, is_streaming: bool, is_last: bool, is_cancelled: bool
) -> FinishReason | None:
    """The finish reason of one sequence after one delta of it, or None while it goes on.

    ``num_tokens``: generated so far, this delta included; ``max_tokens``: what the engine was asked for; ``is_last``: nothing
    follows for the whole request. An end token sampled after ``max_tokens`` tokens does not exist: that is LENGTH. A sequence
    that both was cancelled and stopped short counts as cancelled, since the two look alike.
    """
    if num_tokens >= max_tokens:
        return FinishReason.LENGTH
    has_ended = num_new_tokens == 0 or is_last or not is_streaming
    if not has_ended:
        return None
    return FinishReason.CANCELLED if is_cancelled else FinishReason.STOP
