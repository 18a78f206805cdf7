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
from tandem.text.messages import ChatMessage
from tandem.text.template_marking import Marking
from tandem.text.tokenizer import Tokenizer

_PROBES = (
    (ChatMessage("user", "a"),),
    (ChatMessage("system", "b"), ChatMessage("user", "a")),
    (ChatMessage("user", "a"), ChatMessage("assistant", "c"), ChatMessage("user", "d")),
)


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

    def encode(self, messages: Sequence[ChatMessage], *, field: str = "messages") -> tuple[int, ...]:
        """Prompt ids, ending where the assistant's answer begins.

        Raises: InvalidRequest when the template refuses the messages (an order of roles it does not know) or would act on
        control-token text inside them.
        """
        try:
            plain, marked = self._render(messages)
        except Exception as error:  # a template is a program of the model's author: it may fail on a message in any way
            raise InvalidRequest(field, _roles(messages), f"the model's chat template refuses it: {_reason(error)}") from error
        if self._marking.unmark(marked) != plain:
            raise InvalidRequest(
                field, _roles(messages), "the chat template acts on control tokens spelled in a message; take them out"
            )
        return self._tokenizer.encode(marked, add_special_tokens=False)

    def _render(self, messages: Sequence[ChatMessage]) -> tuple[str, str]:
        """The plain and the marked text of one conversation."""
        names = self._tokenizer.named_tokens
        variables: dict[str, Any] = {
            "messages": [message.to_template() for message in messages],
            "add_generation_prompt": True,
            "tools": None,
            "documents": None,
            "strftime_now": datetime.now(timezone.utc).strftime,
        }
        marked_names = {name: self._marking.mark(text) for name, text in names.items()}
        return self._plain.render(variables | names), self._marked.render(variables | marked_names)

    def _check_probe(self, probe: Sequence[ChatMessage], *, is_required: bool) -> None:
        try:
            plain, marked = self._render(probe)
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
