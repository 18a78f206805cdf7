"""``tandem chat``: a conversation in the terminal; the line under each answer says which path wrote it, why, and how fast."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing

from rich.console import Console

from tandem_cli.command import Command, add_url_arguments
from tandem_client import Sampling, TandemClient
from tandem_client.core import AnswerBuilder
from tandem_client.errors import ClientError
from tandem_client.model_names import MODELS
from tandem_client.results import Answer, Delta, Message

_QUIT = ("/quit", "/exit")
_NEW = "/new"
_HELP = f"{_NEW} starts over, {_QUIT[0]} or Ctrl-D leaves, Ctrl-C stops an answer."


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_url_arguments(parser)
    parser.add_argument("prompt", nargs="?", help="ask this one question and leave; without it, a conversation begins")
    parser.add_argument("--model", choices=MODELS, default=MODELS[0], help="tandem: the router chooses (default %(default)s)")
    parser.add_argument("--task", help="task tag for the router, such as extraction or code")
    parser.add_argument("--system", help="text of a system message at the start")
    parser.add_argument("--max-tokens", type=int, default=None, metavar="N", help="longest answer (default: the server's)")
    parser.add_argument("--temperature", type=float, default=None, metavar="T", help="0 is greedy (default: the server's, 1)")
    parser.add_argument("--seed", type=int, default=None, metavar="N", help="the same seed gives the same answer")


def _run(args: argparse.Namespace) -> int:
    console = Console(stderr=True, highlight=False)
    with TandemClient.http(args.url, api_key=args.api_key) as client:
        talk = _Talk(client, args, console)
        if args.prompt is not None:
            talk.ask(args.prompt)
            return 0
        console.print(f"{args.url}, model {args.model}. {_HELP}", style="dim", markup=False)
        while True:
            try:
                line = console.input("[bold]you>[/bold] ").strip()
            except EOFError:
                return 0
            if line in _QUIT:
                return 0
            if line == _NEW:
                talk.start_over()
            elif line:
                talk.ask_and_go_on(line)


class _Talk:
    """The messages so far; an answer that failed or was stopped leaves them as they were."""

    def __init__(self, client: TandemClient, args: argparse.Namespace, console: Console) -> None:
        self._client = client
        self._args = args
        self._console = console
        self._messages: list[Message] = []
        self.start_over()

    def start_over(self) -> None:
        self._messages = [{"role": "system", "content": self._args.system}] if self._args.system else []

    def ask_and_go_on(self, text: str) -> None:
        try:
            self.ask(text)
        except KeyboardInterrupt:
            self._console.print("\n[dim]stopped[/dim]")
        except ClientError as error:
            self._console.print(f"\n{error.message}", style="red", markup=False)

    def ask(self, text: str) -> None:
        """Show the answer as it comes. Raises: ClientError."""
        args = self._args
        asked: list[Message] = [*self._messages, {"role": "user", "content": text}]
        sampling = Sampling(max_tokens=args.max_tokens, temperature=args.temperature, seed=args.seed)
        builder = AnswerBuilder()
        with closing(self._client.stream(asked, model=args.model, task=args.task, sampling=sampling)) as events:
            for event in events:
                builder.add(event)
                if isinstance(event, Delta):
                    sys.stdout.write(event.text)
                    sys.stdout.flush()
        answer = builder.finish()
        sys.stdout.write("\n")
        self._messages = [*asked, {"role": "assistant", "content": answer.text}]
        self._console.print(_status_line(answer), style="dim", markup=False)


def _status_line(answer: Answer) -> str:
    latency = answer.latency
    length = f"{answer.usage.completion_tokens} tokens, {answer.finish_reason}"
    parts = [f"{answer.path} path ({answer.engine})", answer.decision, length]
    if latency.ttft_s is not None:
        parts.append(f"first text after {latency.ttft_s * 1000:.0f} ms")
    if latency.tpot_s:
        parts.append(f"{1 / latency.tpot_s:.0f} tokens/s")
    return "[" + " | ".join(parts) + "]"


COMMAND = Command("chat", "talk to a running server in the terminal", _add_arguments, _run)
