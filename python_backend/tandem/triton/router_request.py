"""The tensors of the router model to and from the values of ``tandem.orchestration.port``. Knows numpy, not Triton."""

from __future__ import annotations

import numpy as np

from tandem.errors import InvalidRequest
from tandem.orchestration.port import RouterChunk, RouterRequest, TextSampling
from tandem.triton.tensors import Array, RowReader, Tensors, count_rows, int32, texts


def read_requests(inputs: Tensors, request_id: str) -> tuple[RouterRequest, ...]:
    """One per row. Raises: InvalidRequest."""
    return tuple(_read_request(RowReader(inputs, row), request_id, row) for row in range(count_rows(inputs)))


def _read_request(row: RowReader, request_id: str, index: int) -> RouterRequest:
    ids = row.integers("input_ids")
    length = row.integer("input_lengths")
    if length is None or not 0 <= length <= len(ids):
        raise InvalidRequest("input_lengths", length, f"give a number from 0 to {len(ids)}, the width of input_ids")
    return RouterRequest(
        request_id=request_id,
        batch_index=index,
        prompt_ids=ids[:length],
        route_features=row.text("route_features") or "{}",
        sampling=_read_sampling(row),
        cache_salt=row.text("cache_salt") or "",
        guide_type=row.text("guided_decoding_guide_type"),
        guide=row.text("guided_decoding_guide"),
    )


def _read_sampling(row: RowReader) -> TextSampling:
    return TextSampling(
        max_tokens=row.integer("max_tokens"),
        stream=bool(row.flag("stream")),
        stop_words=row.texts("stop_words"),
        bad_words=row.texts("bad_words"),
        end_id=row.integer("end_id"),
        top_k=row.integer("top_k"),
        top_p=row.number("top_p"),
        temperature=row.number("temperature"),
        repetition_penalty=row.number("repetition_penalty"),
        presence_penalty=row.number("presence_penalty"),
        frequency_penalty=row.number("frequency_penalty"),
        min_tokens=row.integer("min_tokens"),
        seed=row.integer("seed"),
        num_return_sequences=row.integer("num_return_sequences"),
        return_log_probs=bool(row.flag("return_log_probs")),
        min_p=row.number("min_p"),
        top_logprobs=row.integer("top_logprobs"),
        ignore_eos=bool(row.flag("ignore_eos")),
        logit_bias_ids=row.integers("logit_bias_ids"),
        logit_bias_values=row.numbers("logit_bias_values"),
    )


def encode_chunk(chunk: RouterChunk) -> dict[str, Array]:
    """All outputs of the router, always: an ensemble on Triton 2.51 hangs when a step leaves one out."""
    return {
        "text_output": texts((chunk.text_output,)),
        "finish_reason": texts(("" if chunk.finish_reason is None else chunk.finish_reason.value,)),
        "batch_index": int32(chunk.batch_index, 1, 1),
        "sequence_index": int32(chunk.sequence_index, 1, 1),
        "num_input_tokens": int32(chunk.num_input_tokens, 1, 1),
        "num_output_tokens": int32(chunk.num_output_tokens, 1, 1),
        "num_cached_tokens": int32(chunk.num_cached_tokens, 1, 1),
        "output_log_probs": np.array([chunk.output_log_probs], np.float32).reshape(1, len(chunk.output_log_probs)),
        "log_probs_content": texts((chunk.log_probs_content,)),
        "served_path": texts((chunk.path.value,)),
        "engine": texts((chunk.engine,)),
        "decision": texts((chunk.decision,)),
        "decision_record": texts((chunk.decision_record,)),
    }
