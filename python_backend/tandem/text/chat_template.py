"""The model's own chat template, rendered so that messages can never place a control token.

Method. Two versions of the template are compiled: the *plain* one as it stands, and the *marked* one in which every control
token that the template itself writes is replaced by its marker (``tandem.text.template_marking``). The marked text is what is
encoded, by a tokenizer that knows control tokens by their markers only. A marker holds a random number, so no message can contain
one:

    template   <|im_start|>user\\n{{ content }}<|im_end|>       message   hi<|im_end|>
    marked     [M1]user\\nhi<|im_end|>[M2]                      -> 1, "user\\nhi<|im_end|>" as ordinary text, 2

Messages themselves are handed to the template untouched, so trimming, splitting, upper-casing or JSON-quoting them works as
written. Each request renders both versions; they must say the same once the markers are turned back. If they do not, the template
has acted on a control token in a way that marking changes, and the request is refused rather than guessed at.

Limits, each checked when the template is loaded and refused with SetupError:

* a template that builds control tokens from pieces (``'<|' + role + '|>'``) cannot be marked;
* a template that refuses a plain user message cannot be used.

What is no token of its own in the vocabulary (``[INST]`` of Llama 2) is ordinary text for template and user alike.

Tools go through the template when it writes them in the form of ``tandem.text.tools``, which is tried out when it is loaded; any
other template gets them as text in ordinary messages.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tandem.errors import InvalidRequest, SetupError
from tandem.text.messages import ChatMessage, MessageToolCall
from tandem.text.template_marking import Marking
from tandem.text.tokenizer import Tokenizer
from tandem.text.tools import CALL_BEGIN, Tool, as_plain_messages

_PROBES = (
    (ChatMessage("user", "a"),),
    (ChatMessage("system", "b"), ChatMessage("user", "a")),
    (ChatMessage("user", "a"), ChatMessage("assistant", "c"), ChatMessage("user", "d")),
)
_TOOL_PROBE = (
    ChatMessage("user", "a"),
    ChatMessage("assistant", "", tool_calls=(MessageToolCall("id-1", "probe_of_calls", {"x": "probe of arguments"}),)),
    ChatMessage("tool", "probe of results", tool_call_id="id-1"),
)
_PROBED_TOOL: Tool = {
    "type": "function",
    "function": {"name": "probe_of_tools", "description": "b", "parameters": {"type": "object", "properties": {}}},
}


class ChatTemplate:
    """One template with its tokenizer. Immutable after construction and thread-safe."""

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        """Raises: SetupError when the template is faulty or cannot be used safely."""
        self._tokenizer = tokenizer
        self._marking = Marking(tokenizer.control_tokens)
        environment = _environment()
        try:
            self._plain = environment.from_string(source)
            marked = environment.parse(source)
            self._marking.mark_template(marked)
            self._marked = environment.from_string(marked)
        except jinja2.TemplateSyntaxError as error:
            raise SetupError(f"the chat template is faulty in line {error.lineno}: {error.message}") from error
        for number, probe in enumerate(_PROBES):
            self._check_probe(probe, is_required=number == 0)
        self.has_tools = self._find_tools()
        """Whether tools go through the template itself."""

    def encode(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), *, field: str = "messages") -> tuple[int, ...]:
        """Prompt ids, ending where the assistant's answer begins.

        Raises: InvalidRequest when the template refuses the messages (an order of roles it does not know) or would act on
        control-token text inside them.
        """
        if not self.has_tools:
            messages, tools = as_plain_messages(messages, tools), ()
        try:
            plain, marked = self._render(messages, tools)
        except Exception as error:  # a template is a program of the model's author: it may fail on a message in any way
            raise InvalidRequest(field, _roles(messages), f"the model's chat template refuses it: {_reason(error)}") from error
        if self._marking.unmark(marked) != plain:
            raise InvalidRequest(
                field, _roles(messages), "the chat template acts on control tokens spelled in a message; take them out"
            )
        return self._tokenizer.encode(marked, add_special_tokens=False)

    def _render(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> tuple[str, str]:
        """The plain and the marked text of one conversation."""
        names = self._tokenizer.named_tokens
        variables: dict[str, Any] = {
            "messages": [message.to_template() for message in messages],
            "add_generation_prompt": True,
            "tools": list(tools) or None,
            "documents": None,
            "strftime_now": datetime.now(timezone.utc).strftime,
        }
        marked_names = {name: self._marking.mark(text) for name, text in names.items()}
        return self._plain.render(variables | names), self._marked.render(variables | marked_names)

    def _find_tools(self) -> bool:
        """Whether the template shows tools, calls and results, and calls in our form. Raises: SetupError as for any probe."""
        try:
            plain, _ = self._render(_TOOL_PROBE, (_PROBED_TOOL,))
        except Exception:
            return False  # a template may know no role tool, for example
        shown = (CALL_BEGIN, "probe_of_tools", "probe_of_calls", '{"x": "probe of arguments"}', "probe of results")
        if not all(text in plain for text in shown):
            return False
        self._check_probe(_TOOL_PROBE, (_PROBED_TOOL,), is_required=True)
        return True

    def _check_probe(self, probe: Sequence[ChatMessage], tools: Sequence[Tool] = (), *, is_required: bool) -> None:
        try:
            plain, marked = self._render(probe, tools)
        except Exception as error:
            if is_required:
                raise SetupError(f"the chat template refuses a plain user message: {_reason(error)}") from error
            return  # a template without system turns, for example: said again, to the caller, when one sends such messages
        expected, found = self._marking.texts_in(plain), self._marking.marked_in(marked)
        if expected != found or self._marking.unmark(marked) != plain:
            missing = next((text for text in expected if text not in found), "a control token")
            raise SetupError(
                f"the chat template builds {missing} from pieces or tests for it, so text of users could not be kept apart "
                "from it; write control tokens out in the template"
            )


class _GenerationBlock(Extension):
    """``{% generation %} ... {% endgeneration %}``, which marks the assistant's part for training and prints its body."""

    tags = {"generation"}  # noqa: RUF012  (the attribute jinja2 reads)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    """The dialect in which chat templates are written: blocks trimmed, loop controls, a JSON filter that escapes nothing."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, autoescape=False, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _roles(messages: Sequence[ChatMessage]) -> str:
    return "the roles " + ", ".join(message.role for message in messages)
