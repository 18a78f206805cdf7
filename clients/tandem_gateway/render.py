"""The two response shapes of the OpenAI API, as plain dictionaries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from tandem_client.tool_calls import CallDelta
from tandem_gateway.answer import Answer, Choice, Piece
from tandem_gateway.translate import MODEL_BY_PATH

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every body and event of one request repeats. ``wants_usage`` puts ``usage: null`` into the events before the last."""

    id: str
    created: int
    asked_model: str
    system_fingerprint: str | None
    wants_log_probs: bool
    wants_usage: bool

    def wrap(self, kind: str, path: str, choices: list[Json]) -> Json:
        """``model`` names the side that really wrote this text; before anything was written, the one asked for."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": MODEL_BY_PATH.get(path, self.asked_model),
            "system_fingerprint": self.system_fingerprint,
            "choices": choices,
        }

    def event(self, kind: str, path: str, choices: list[Json]) -> Json:
        body = self.wrap(kind, path, choices)
        if self.wants_usage:
            body["usage"] = None
        return body


class Renderer(Protocol):
    """One response shape."""

    operation: str  # gen_ai.operation.name
    id_prefix: str
    event_kind: str

    def body(self, envelope: Envelope, answer: Answer) -> Json:
        """The whole answer in one body."""
        ...

    def events(self, envelope: Envelope, piece: Piece) -> Iterator[Json]:
        """The events of one piece; none when it shows nothing (held-back bytes)."""
        ...


def usage_event(envelope: Envelope, renderer: Renderer, answer: Answer) -> Json:
    """The last event before [DONE]: no choices, so that nobody counts it as text."""
    body = envelope.wrap(renderer.event_kind, answer.path, [])
    body["usage"] = answer.usage
    return body


class ChatRenderer:
    """Chat completions. Log-probabilities are of all generated tokens, those of tool calls too."""

    operation = "chat"
    id_prefix = "chatcmpl-"
    event_kind = "chat.completion.chunk"

    def body(self, envelope: Envelope, answer: Answer) -> Json:
        choices = [
            {
                "index": choice.index,
                "message": self._message(choice),
                "logprobs": self._log_probs(envelope, choice.log_probs),
                "finish_reason": choice.finish_reason,
            }
            for choice in answer.choices
        ]
        return {**envelope.wrap("chat.completion", answer.path, choices), "usage": answer.usage}

    def events(self, envelope: Envelope, piece: Piece) -> Iterator[Json]:
        if piece.is_first:
            # With tools nobody knows yet whether there will be content.
            content = "" if piece.choice.reader is None else None
            yield self._event(envelope, piece, {"role": "assistant", "content": content}, None, None)
        log_probs = piece.log_probs
        for part in piece.parts:
            yield self._event(envelope, piece, self._delta(part), self._log_probs(envelope, log_probs), None)
            log_probs = []
        if log_probs:
            yield self._event(envelope, piece, {"content": ""}, self._log_probs(envelope, log_probs), None)
        if piece.finish_reason is not None:
            yield self._event(envelope, piece, {}, None, piece.finish_reason)

    def _event(self, envelope: Envelope, piece: Piece, delta: Json, log_probs: Json | None, finish_reason: str | None) -> Json:
        choice = {"index": piece.choice.index, "delta": delta, "logprobs": log_probs, "finish_reason": finish_reason}
        return envelope.event(self.event_kind, piece.path, [choice])

    @staticmethod
    def _message(choice: Choice) -> Json:
        if choice.reader is None:
            return {"role": "assistant", "content": choice.text, "refusal": None}
        message: Json = {"role": "assistant", "content": choice.text or None, "refusal": None}
        if choice.call_parts:
            message["tool_calls"] = [_call(parts) for parts in choice.call_parts]
        return message

    @staticmethod
    def _delta(part: str | CallDelta) -> Json:
        if isinstance(part, str):
            return {"content": part}
        if part.id is None:
            return {"tool_calls": [{"index": part.index, "function": {"arguments": part.arguments}}]}
        return {"tool_calls": [{"index": part.index, **_call([part])}]}

    @staticmethod
    def _log_probs(envelope: Envelope, content: list[Json]) -> Json | None:
        return {"content": content, "refusal": None} if envelope.wants_log_probs else None


def _call(parts: list[CallDelta]) -> Json:
    """A tool call; the first part has its id and name."""
    arguments = "".join(part.arguments for part in parts)
    return {"id": parts[0].id, "type": "function", "function": {"name": parts[0].name, "arguments": arguments}}


class CompletionRenderer:
    operation = "text_completion"
    id_prefix = "cmpl-"
    event_kind = "text_completion"

    def body(self, envelope: Envelope, answer: Answer) -> Json:
        choices = [
            self._choice(envelope, choice, choice.text, choice.log_probs, 0, choice.finish_reason) for choice in answer.choices
        ]
        return {**envelope.wrap("text_completion", answer.path, choices), "usage": answer.usage}

    def events(self, envelope: Envelope, piece: Piece) -> Iterator[Json]:
        if piece.text or piece.log_probs or piece.finish_reason is not None:
            choice = self._choice(envelope, piece.choice, piece.text, piece.log_probs, piece.text_offset, piece.finish_reason)
            yield envelope.event(self.event_kind, piece.path, [choice])

    @staticmethod
    def _choice(envelope: Envelope, choice: Choice, text: str, content: list[Json], offset: int, finish_reason: str | None) -> Json:
        log_probs = _legacy_log_probs(content, offset) if envelope.wants_log_probs else None
        return {"index": choice.index, "text": text, "logprobs": log_probs, "finish_reason": finish_reason}


def _legacy_log_probs(content: list[Json], offset: int) -> Json:
    """The four parallel lists of the completions API; ``text_offset`` counts characters of the tokens' texts."""
    offsets = []
    for entry in content:
        offsets.append(offset)
        offset += len(entry["token"])
    return {
        "tokens": [entry["token"] for entry in content],
        "token_logprobs": [entry["logprob"] for entry in content],
        "top_logprobs": [{item["token"]: item["logprob"] for item in entry.get("top_logprobs", [])} for entry in content],
        "text_offset": offsets,
    }
