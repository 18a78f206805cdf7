"""Entry point of ``tandem``: finds the sub-command and turns errors into one sentence and an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

import tandem
from tandem.errors import SetupError
from tandem_cli.command import Command
from tandem_client.errors import ClientError

# Name -> module with COMMAND. Imported when chosen or for help: `tandem chat` needs no server parts.
_MODULES = {
    "serve": "tandem_cli.serve",
    "chat": "tandem_cli.chat",
    "status": "tandem_cli.status",
    "explain": "tandem_cli.explain",
    "engines": "tandem_cli.engines",
    "bench": "tandem_cli.bench",
    "plan": "tandem_cli.plan",
    "route": "tandem_cli.route",
}
_EXIT_FAILED, _EXIT_SETUP, _EXIT_INTERRUPTED = 1, 2, 130


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 done, 1 the server said no or is away, 2 set-up or usage is wrong, 130 interrupted."""
    parser = _parser()
    args = parser.parse_args(argv)
    command: Command = args.command
    try:
        return command.run(args)
    except SetupError as error:
        return _say(error.message, _EXIT_SETUP)
    except ClientError as error:
        return _say(error.message, _EXIT_FAILED)
    except KeyboardInterrupt:
        return _say("interrupted", _EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has gone (`| head`). What is still buffered goes nowhere, without a second error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tandem", description="LLM serving on two paths behind one model name.")
    parser.add_argument("--version", action="version", version=f"tandem {tandem.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, module in _MODULES.items():
        command: Command = importlib.import_module(module).COMMAND
        sub = commands.add_parser(name, help=command.help, description=command.help)
        command.add_arguments(sub)
        sub.set_defaults(command=command)
    return parser


def _say(message: str, code: int) -> int:
    sys.stderr.write(f"tandem: {message}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
