"""From a JSON body to a :class:`TextRequest`: what pydantic cannot say in types, and the tensor names."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tandem.errors import InvalidRequest
from tandem_client.text import Sampling, TextRequest
from tandem_client.tools import ToolUse
from tandem_gateway.errors import invalid
from tandem_gateway.field_names import CHAT_FIELDS, COMPLETION_FIELDS, FieldNames
from tandem_gateway.fields import CHAT, COMPLETION, take_out_neutral
from tandem_gateway.guides import read_guide
from tandem_gateway.keys import cache_salt
from tandem_gateway.record import RequestRecord
from tandem_gateway.route_fields import read_route
from tandem_gateway.schemas import ChatBody, CompletionBody, Generation, Message, validate
from tandem_gateway.settings import GatewaySettings
from tandem_gateway.strict import MAX_INT32
from tandem_gateway.tool_use import read_tools

# OpenAI's defaults where they differ from what the engines do when nothing is said.
DEFAULT_TEMPERATURE = 1.0
DEFAULT_COMPLETION_TOKENS = 16

MODEL_BY_PATH = {"fast": "tandem-fast", "slow": "tandem-slow"}

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request after every check the gateway can make. ``tools``: None where the answer is text alone."""

    text: TextRequest
    model: str
    is_stream: bool
    include_usage: bool
    field_names: FieldNames
    tools: ToolUse | None = None


def read_chat(payload: dict[str, Any], headers: Mapping[str, str], settings: GatewaySettings, record: RequestRecord) -> Asked:
    """A body of ``/v1/chat/completions``. Raises: TandemError with the HTTP status of the refusal."""
    body = validate(ChatBody, take_out_neutral(payload, CHAT))
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs", body.top_logprobs, "set logprobs to true as well, or leave it out")
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
        raise InvalidRequest(
            "max_completion_tokens", body.max_completion_tokens, "give only one of max_tokens and max_completion_tokens"
        )
    sampling = _sampling(
        body,
        settings,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        logprobs=bool(body.logprobs),
        top_logprobs=body.top_logprobs or 0,
    )
    messages = orjson.dumps([_message(message, f"messages[{index}]") for index, message in enumerate(body.messages)]).decode()
    return _asked(body, headers, CHAT_PATH, sampling, record, messages=messages, tools=read_tools(body))


def read_completion(payload: dict[str, Any], headers: Mapping[str, str], settings: GatewaySettings, record: RequestRecord) -> Asked:
    """A body of ``/v1/completions``. Raises: TandemError with the HTTP status of the refusal."""
    body = validate(CompletionBody, take_out_neutral(_without_token_prompts(payload), COMPLETION))
    prompts = (body.prompt,) if isinstance(body.prompt, str) else tuple(body.prompt)
    if len(prompts) > settings.max_prompts:
        raise InvalidRequest("prompt", f"{len(prompts)} prompts", f"give at most {settings.max_prompts} in one request")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise InvalidRequest("best_of", body.best_of, "leave it out: all n answers are returned")
    sampling = _sampling(
        body,
        settings,
        max_tokens=body.max_tokens or DEFAULT_COMPLETION_TOKENS,
        logprobs=body.logprobs is not None,
        top_logprobs=body.logprobs or 0,
    )
    return _asked(body, headers, COMPLETION_PATH, sampling, record, prompts=prompts)


def _asked(
    body: Generation,
    headers: Mapping[str, str],
    api_path: str,
    sampling: Sampling,
    record: RequestRecord,
    *,
    prompts: tuple[str, ...] = (),
    messages: str | None = None,
    tools: ToolUse | None = None,
) -> Asked:
    route = read_route(body.model, headers, body.metadata or {})
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options", "an object", "set stream to true as well, or leave it out")
    asked_guide = read_guide(body, tools)
    text = TextRequest(
        request_id=record.completion_id,
        prompts=prompts,
        messages=messages,
        tools=None if tools is None else tools.prompt_json,
        guide=None if asked_guide is None else asked_guide.guide,
        path=route.model.path,
        threshold=route.model.threshold,
        task=route.task,
        api_path=api_path,
        source=route.source,
        session=route.session,
        slo_ttft_ms=route.slo_ttft_ms,
        slo_tpot_ms=route.slo_tpot_ms,
        stream=bool(body.stream),
        cache_salt=cache_salt(record.tenant, body.cache_salt),
        sampling=sampling,
    )
    include_usage = bool(body.stream_options and body.stream_options.include_usage)
    return Asked(
        text=text,
        model=route.model.base,
        is_stream=bool(body.stream),
        include_usage=include_usage,
        field_names=FieldNames(CHAT_FIELDS if messages is not None else COMPLETION_FIELDS, asked_guide),
        tools=tools,
    )


def _sampling(
    body: Generation, settings: GatewaySettings, *, max_tokens: int | None, logprobs: bool, top_logprobs: int
) -> Sampling:
    if body.n is not None and body.n > settings.max_choices:
        raise InvalidRequest("n", body.n, f"give at most {settings.max_choices}")
    if body.min_tokens is not None and max_tokens is not None and body.min_tokens > max_tokens:
        raise InvalidRequest("min_tokens", body.min_tokens, f"give at most max_tokens, which is {max_tokens}")
    bias = _logit_bias(body.logit_bias or {})
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        temperature=DEFAULT_TEMPERATURE if body.temperature is None else body.temperature,
        # -1 is vLLM's way to say "no cut", 0 is the contract's.
        top_k=0 if body.top_k == -1 else body.top_k,
        top_p=body.top_p,
        min_p=body.min_p,
        seed=_seed(body.seed),
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        num_return_sequences=body.n,
        stop_words=stop,
        ignore_eos=body.ignore_eos,
        return_log_probs=logprobs or None,
        top_logprobs=top_logprobs or None,
        logit_bias_ids=tuple(bias),
        logit_bias_values=tuple(bias.values()),
    )


def _seed(seed: int | None) -> int:
    """Unseeded requests differ from each other: an engine that gets no seed may use one and the same for all."""
    # Negative seeds are legal in OpenAI's API; the tensor is unsigned.
    return secrets.randbits(64) if seed is None else seed % 2**64


def _logit_bias(raw: dict[str, float]) -> dict[int, float]:
    bias = {}
    for key, value in raw.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= MAX_INT32):
            raise InvalidRequest("logit_bias", key, "use token ids of the model as keys, in decimal digits")
        bias[int(key)] = value
    if len(bias) != len(raw):
        raise InvalidRequest("logit_bias", ", ".join(raw), "give every token id once")
    return bias


def _message(message: Message, field: str) -> dict[str, Any]:
    """A message as the chat template reads it; parts stay parts, because joining them is the template's business."""
    # The templates know no developer role; OpenAI's API treats it as the newer name of system.
    shown: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    if message.content is None and not message.tool_calls:
        raise invalid(f"{field}.content", "null", "give a text; only a message with tool_calls can be without")
    shown["content"] = [part.model_dump() for part in message.content] if isinstance(message.content, list) else message.content
    if message.tool_calls:
        shown["tool_calls"] = [call.model_dump() for call in message.tool_calls]
    if message.name is not None:
        shown["name"] = message.name
    if message.tool_call_id is not None:
        shown["tool_call_id"] = message.tool_call_id
    return shown


def _without_token_prompts(payload: dict[str, Any]) -> dict[str, Any]:
    prompt = payload.get("prompt")
    if isinstance(prompt, list) and any(isinstance(item, (int, list)) for item in prompt):
        raise InvalidRequest("prompt", "token ids", "give text: token ids as a prompt are not offered")
    return payload
