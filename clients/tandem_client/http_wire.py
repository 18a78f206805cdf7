"""The OpenAI API as the client speaks it: bodies out, server-sent events in. No input or output here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tandem_client.errors import ApiError
from tandem_client.guide import Guide
from tandem_client.results import Call, Delta, Event, Head, TokenLogProb, Usage
from tandem_client.tool_calls import CallDelta
from tandem_client.tools import ToolUse

# The name of each type of guide in the API (vLLM's), and whether its text is JSON that the API takes as such.
_GUIDE_FIELDS = {
    "json_schema": ("json", True),
    "regex": ("regex", False),
    "choice": ("choice", True),
    "ebnf_grammar": ("grammar", False),
    "structural_tag": ("structural_tag", True),
}
_PATH_BY_MODEL = {"tandem-fast": "fast", "tandem-slow": "slow"}
# Our names are the tensor names; these fields have other names in the OpenAI API.
_SAME_NAMES = (
    "max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "ignore_eos",
)  # fmt: skip


def route(call: Call) -> str:
    return "/v1/completions" if call.prompt is not None else "/v1/chat/completions"


def headers(api_key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


def body(call: Call) -> dict[str, Any]:
    """Always streamed: a complete answer is the sum of its events, and only a stream shows the time to the first token."""
    sampling = call.sampling
    fields: dict[str, Any] = {name: getattr(sampling, name) for name in _SAME_NAMES if getattr(sampling, name) is not None}
    fields |= {"model": call.model, "stream": True, "stream_options": {"include_usage": True}}
    if call.prompt is not None:
        fields["prompt"] = call.prompt
    else:
        fields["messages"] = [dict(message) for message in call.messages]
    if call.task is not None:
        fields["metadata"] = {"task": call.task}
    if sampling.num_return_sequences is not None:
        fields["n"] = sampling.num_return_sequences
    if sampling.stop_words:
        fields["stop"] = list(sampling.stop_words)
    if sampling.logit_bias_ids:
        pairs = zip(sampling.logit_bias_ids, sampling.logit_bias_values, strict=True)
        fields["logit_bias"] = {str(token_id): bias for token_id, bias in pairs}
    if sampling.return_log_probs:
        fields |= _log_prob_fields(call)
    if call.guide is not None:
        fields["structured_outputs"] = _guide_field(call.guide)
    if call.tools is not None:
        fields |= _tool_fields(call.tools)
    return fields


def _guide_field(guide: Guide) -> dict[str, Any]:
    name, is_json = _GUIDE_FIELDS[guide.type]
    return {name: json.loads(guide.text) if is_json else guide.text}


def _tool_fields(use: ToolUse) -> dict[str, Any]:
    """Raises nothing; whatever the client's tools can say, the API can."""
    choice: str | dict[str, Any] = use.mode
    if use.mode == "named":
        choice = {"type": "function", "function": {"name": use.callable_names[0]}}
    return {
        "tools": [tool.to_json() for tool in use.tools],
        "tool_choice": choice,
        "parallel_tool_calls": use.is_parallel,
    }


def _log_prob_fields(call: Call) -> dict[str, Any]:
    top = call.sampling.top_logprobs or 0
    return {"logprobs": top} if call.prompt is not None else {"logprobs": True, "top_logprobs": top}


def read_head(received: Mapping[str, str]) -> Head:
    return Head(
        request_id=received.get("x-request-id", ""),
        path=received.get("x-tandem-path", ""),
        engine=received.get("x-tandem-engine", ""),
        decision=received.get("x-tandem-decision", ""),
    )


def read_error(status: int, content: bytes) -> ApiError:
    """The error of a response that is not 200."""
    try:
        error = json.loads(content)["error"]
        return ApiError(error["message"], status=status, code=error["code"], field=error["param"])
    except (ValueError, KeyError, TypeError):
        return ApiError(f"the server answered with status {status}", status=status, code="unknown")


def read_line(line: str) -> Iterator[Event]:
    """The events of one line; comments, blank lines and the end mark give none. Raises: ApiError of an error event."""
    if not line.startswith("data: ") or line == "data: [DONE]":
        return
    event = json.loads(line.removeprefix("data: "))
    if "error" in event:
        error = event["error"]
        raise ApiError(error["message"], status=500, code=error["code"], field=error["param"])
    for choice in event["choices"]:
        delta = choice.get("delta", {})
        yield Delta(
            index=choice["index"],
            text=choice["text"] if "text" in choice else delta.get("content") or "",
            finish_reason=choice["finish_reason"],
            path=_PATH_BY_MODEL.get(event["model"], ""),
            log_probs=tuple(_log_probs(choice["logprobs"])),
            tool_calls=tuple(_call_delta(call) for call in delta.get("tool_calls") or ()),
        )
    if event.get("usage"):
        usage = event["usage"]
        details = usage.get("prompt_tokens_details") or {}
        yield Usage(usage["prompt_tokens"], usage["completion_tokens"], details.get("cached_tokens", 0))


def _call_delta(call: Mapping[str, Any]) -> CallDelta:
    function = call["function"]
    return CallDelta(call["index"], function.get("arguments", ""), call.get("id"), function.get("name"))


def _log_probs(value: dict[str, Any] | None) -> Iterator[TokenLogProb]:
    if value is None:
        return
    if "content" in value:
        for entry in value["content"]:
            yield token_log_prob(entry)
        return
    for token, log_prob, top in zip(value["tokens"], value["token_logprobs"], value["top_logprobs"], strict=True):
        yield TokenLogProb(token, log_prob, tuple(top.items()))


def token_log_prob(entry: Mapping[str, Any]) -> TokenLogProb:
    """One entry of the chat form."""
    top = tuple((item["token"], item["logprob"]) for item in entry.get("top_logprobs", ()))
    return TokenLogProb(entry["token"], entry["logprob"], top)
