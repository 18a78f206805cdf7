"""``tandem engines``: the CPU engines and the model repository, over ``build_engines``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tandem_cli.command import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    render = actions.add_parser("render", help="write the Triton model repository of a profile")
    render.add_argument("--profile", default="cpu", help="a name in build_engines/profiles (default %(default)s)")
    render.add_argument("--out", type=Path, default=Path("model_repository"), metavar="DIR", help="where to (default %(default)s)")
    render.set_defaults(action=_render)


def _render(args: argparse.Namespace) -> int:
    from build_engines.render import render

    written = render(args.profile, args.out)
    sys.stdout.write(f"{len(written)} files of profile {args.profile} written to {args.out}\n")
    return 0


def _run(args: argparse.Namespace) -> int:
    code: int = args.action(args)
    return code


COMMAND = Command("engines", "build, list and check the CPU engines; render the model repository", _add_arguments, _run)
