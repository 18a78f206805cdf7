"""A caller's prompt to token ids and route features: the work of the ``preprocessing`` model."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from tandem.errors import ContextLengthExceeded, InvalidRequest, SetupError
from tandem.routing.features import extract_features
from tandem.text.chat_template import ChatTemplate
from tandem.text.messages import ChatMessage, parse_messages
from tandem.text.tokenizer import Tokenizer
from tandem.text.tools import parse_tools

# Beyond this many characters per token of the context only a part is tokenized first: 5 MB would keep a core busy for seconds.
_PROBE_CHARS_PER_TOKEN = 16


@dataclass(frozen=True, slots=True)
class PromptInput:
    """One row of one request to ``preprocessing``: the tensors of ``PROMPT_INPUTS`` and ``ROUTE_INPUTS``; None is "not given"."""

    text_input: str | None = None
    messages: str | None = None
    tools: str | None = None
    path: str = "auto"
    task: str = ""
    api_path: str = ""
    source: str = ""
    threshold: float | None = None
    slo_ttft_ms: float | None = None
    slo_tpot_ms: float | None = None
    session: str = ""


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """The tensors ``input_ids`` and ``route_features`` of one row."""

    input_ids: tuple[int, ...]
    route_features: str


class PromptPreparer:
    """Immutable after construction and thread-safe."""

    def __init__(self, tokenizer: Tokenizer, max_seq_len: int) -> None:
        """``max_seq_len``: of the engine with the largest context. Raises: SetupError for an unusable chat template."""
        self._tokenizer = tokenizer
        self._max_seq_len = max_seq_len
        self._template = None if tokenizer.chat_template is None else ChatTemplate(tokenizer.chat_template, tokenizer)
        if tokenizer.eos_id is None:
            raise SetupError("tokenizer_config.json names no eos_token, so no answer would ever end; add it")

    def prepare(self, prompt: PromptInput) -> PreparedPrompt:
        """Raises: InvalidRequest naming the tensor; ContextLengthExceeded with length and limit."""
        if (prompt.text_input is None) == (prompt.messages is None):
            given = "neither" if prompt.text_input is None else "both"
            raise InvalidRequest("text_input", given, "give exactly one of text_input and messages")
        if prompt.messages is not None:
            return self._prepare_chat(prompt, parse_messages(_parse_json("messages", prompt.messages)))
        if prompt.tools is not None:
            raise InvalidRequest("tools", prompt.tools, "give messages: tools are shown by the chat template")
        return self._prepare_text(prompt, prompt.text_input or "")

    def _prepare_chat(self, prompt: PromptInput, messages: tuple[ChatMessage, ...]) -> PreparedPrompt:
        if self._template is None:
            raise InvalidRequest("messages", "a chat", "this model has no chat template; send text_input instead")
        tools = () if prompt.tools is None else parse_tools(_parse_json("tools", prompt.tools))
        calls = [str(call.arguments) for message in messages for call in message.tool_calls]
        self._refuse_huge("messages", "\n".join([prompt.tools or "", *(message.content for message in messages), *calls]))
        input_ids = self._template.encode(messages, tools)
        user_texts = [message.content for message in messages if message.role == "user"]
        text, num_turns = user_texts[-1] if user_texts else "", max(len(user_texts), 1)
        return self._prepared(prompt, "messages", input_ids, text, num_turns, is_tool_result=messages[-1].role == "tool")

    def _prepare_text(self, prompt: PromptInput, text: str) -> PreparedPrompt:
        if not text:
            raise InvalidRequest("text_input", '""', "give at least one character")
        self._refuse_huge("text_input", text)
        input_ids = self._tokenizer.encode(text, add_special_tokens=True, field="text_input")
        return self._prepared(prompt, "text_input", input_ids, text, 1)

    def _prepared(
        self,
        prompt: PromptInput,
        field: str,
        input_ids: tuple[int, ...],
        text: str,
        num_turns: int,
        *,
        is_tool_result: bool = False,
    ) -> PreparedPrompt:
        if len(input_ids) >= self._max_seq_len:
            raise ContextLengthExceeded(field, len(input_ids), self._max_seq_len)
        features = extract_features(
            text,
            num_prompt_tokens=len(input_ids),
            num_turns=num_turns,
            path=prompt.path,
            task=prompt.task,
            api_path=prompt.api_path,
            source=prompt.source,
            threshold=prompt.threshold,
            slo_ttft_ms=prompt.slo_ttft_ms,
            slo_tpot_ms=prompt.slo_tpot_ms,
            session=prompt.session,
            is_tool_result=is_tool_result,
        )
        return PreparedPrompt(input_ids, features.to_json())

    def _refuse_huge(self, field: str, text: str) -> None:
        """Refuse a text of which a bounded part alone fills the context."""
        probe = text[: _PROBE_CHARS_PER_TOKEN * self._max_seq_len]
        if len(probe) == len(text):
            return
        num_tokens = len(self._tokenizer.encode(probe, add_special_tokens=False, field=field))
        if num_tokens >= self._max_seq_len:
            raise ContextLengthExceeded(field, num_tokens, self._max_seq_len, is_lower_bound=True)


def _parse_json(field: str, text: str) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(field, text, f"give a JSON array of {field} ({error})") from None
