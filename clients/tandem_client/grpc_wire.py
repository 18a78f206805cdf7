"""Between the client's types and the text model of Triton; shared by both faces. No input or output here."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

from tandem_client.errors import ApiError
from tandem_client.http_wire import token_log_prob
from tandem_client.model_names import HINT, read_model
from tandem_client.results import Call, Delta, Event, Head, Usage
from tandem_client.text import TextChunk, TextRequest
from tandem_client.tool_calls import CallDelta, ToolCallReader
from tandem_client.tools import ToolUse


def text_request(call: Call) -> TextRequest:
    """Raises: ApiError for an unknown model, as the gateway would say it."""
    choice = read_model(call.model)
    if choice is None:
        raise ApiError(f"model: got {call.model}; {HINT}", status=404, code="model_not_found", field="model")
    return TextRequest(
        request_id=f"client-{uuid.uuid4().hex}",
        prompts=() if call.prompt is None else (call.prompt,),
        messages=None if call.prompt is not None else json.dumps([dict(message) for message in call.messages]),
        tools=None if call.tools is None else call.tools.prompt_json,
        guide=call.guide if call.tools is None else call.tools.guide,
        path=choice.path,
        threshold=choice.threshold,
        task=call.task,
        api_path="grpc",
        stream=True,
        sampling=call.sampling,
    )


class ChunkReader:
    """Chunks of one request in, events out."""

    def __init__(self, request_id: str, tools: ToolUse | None = None) -> None:
        self._request_id = request_id
        self._tools = tools
        self._readers: dict[int, ToolCallReader] = {}
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._completion_tokens: dict[int, int] = {}

    def read(self, chunk: TextChunk) -> Iterator[Event]:
        if not self._completion_tokens:
            yield Head(self._request_id, chunk.path, chunk.engine, chunk.decision)
        if chunk.finish_reason == "cancelled":
            raise ApiError("the request was stopped before its answer was complete", status=499, code="cancelled")
        self._prompt_tokens = chunk.num_input_tokens
        self._cached_tokens = chunk.num_cached_tokens
        self._completion_tokens[chunk.sequence_index] = chunk.num_output_tokens
        log_probs = tuple(token_log_prob(entry) for entry in json.loads(chunk.log_probs_content or "[]"))
        if self._tools is None:
            yield Delta(chunk.sequence_index, chunk.text, chunk.finish_reason or None, chunk.path, log_probs)
            return
        parts, finish_reason = self._read_calls(chunk, self._tools)
        for part in parts:
            text, calls = (part, ()) if isinstance(part, str) else ("", (part,))
            yield Delta(chunk.sequence_index, text, None, chunk.path, log_probs, calls)
            log_probs = ()
        if finish_reason is not None or log_probs:
            yield Delta(chunk.sequence_index, "", finish_reason, chunk.path, log_probs)

    def _read_calls(self, chunk: TextChunk, tools: ToolUse) -> tuple[list[str | CallDelta], str | None]:
        """The parts of a chunk, and the finish reason if it is the last. Raises: EngineFailure."""
        reader = self._readers.setdefault(chunk.sequence_index, tools.new_reader())
        parts = reader.push(chunk.text)
        if not chunk.finish_reason:
            return parts, None
        parts += reader.finish()
        return parts, reader.finish_reason(chunk.finish_reason)

    def usage(self) -> Usage:
        """Call after the last chunk."""
        return Usage(self._prompt_tokens, sum(self._completion_tokens.values()), self._cached_tokens)
