"""``tandem bench NAME``: one benchmark. Its result goes to stdout as one JSON object; everything for people goes to stderr."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.bench import NAMES
from tandem.errors import SetupError
from tandem_cli.command import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=NAMES, help="which benchmark")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: shows that it runs, not what to quote")
    parser.add_argument("--data", type=Path, help="a folder of public data that the benchmark reads if it is given")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object on stdout")


def _run(args: argparse.Namespace) -> int:
    console = Console(stderr=True, highlight=False)
    module = importlib.import_module(f"loadtest.bench.{args.name.replace('-', '_')}")
    options = {} if args.data is None else {"data": args.data}
    if options and "data" not in inspect.signature(module.run).parameters:
        raise SetupError(f"--data: the benchmark {args.name} reads no data; leave it out")
    result: dict[str, Any] = module.run(
        quick=args.quick, progress=lambda line: console.print(line, style="dim", markup=False), **options
    )
    table = Table("figure", "value", title=f"tandem bench {args.name}" + (" --quick" if args.quick else ""))
    for name, value in _flat(result):
        table.add_row(name, value)
    console.print(table)
    if args.json:
        sys.stdout.write(json.dumps(result, allow_nan=False) + "\n")
    return 0


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested figures as dotted names."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, f"{value:.4g}" if isinstance(value, float) else str(value)


COMMAND = Command("bench", "run one benchmark", _add_arguments, _run)
