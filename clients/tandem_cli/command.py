"""What a sub-command is, and what several of them share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

DEFAULT_URL = "http://127.0.0.1:8080"


@dataclass(frozen=True, slots=True)
class Command:
    """One sub-command. ``run`` returns the exit code. SetupError (2) and ClientError (1) become one sentence."""

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_url_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of commands that talk to a running gateway."""
    url, key = os.environ.get("TANDEM_URL", DEFAULT_URL), os.environ.get("TANDEM_API_KEY")
    parser.add_argument("--url", default=url, help="address of the gateway (default: $TANDEM_URL or %(default)s)")
    parser.add_argument("--api-key", default=key, metavar="KEY", help="key, if the gateway asks for one (default: $TANDEM_API_KEY)")


def add_home_argument(parser: argparse.ArgumentParser) -> None:
    home = Path(os.environ.get("TANDEM_HOME") or Path.home() / ".cache" / "tandem")
    text = "folder of the engines (default: $TANDEM_HOME or ~/.cache/tandem)"
    parser.add_argument("--home", type=Path, default=home, metavar="DIR", help=text)
