"""``tandem explain ID``: why a request went where it went, and whether the same would be decided again."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from urllib.parse import quote

import httpx

from tandem.errors import InvalidRequest, SetupError
from tandem.routing.explain import DecisionRecord, explain, replay
from tandem_cli.command import Command, add_url_arguments
from tandem_client.errors import ConnectionFailed
from tandem_client.http_wire import headers, read_error

_EXIT_DIFFERS = 1
_TIMEOUT_S = 10.0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", nargs="?", help="id of the answer (chatcmpl-…, cmpl-…) or its x-request-id")
    parser.add_argument("--file", type=Path, metavar="FILE", help="explain the record in FILE (output decision_record) instead")
    parser.add_argument("--json", action="store_true", help="print the records, one JSON object a line")
    add_url_arguments(parser)


def _run(args: argparse.Namespace) -> int:
    if (args.id is None) == (args.file is None):
        raise SetupError("give the id of a request or --file, one of the two")
    texts = [_read(args.file)] if args.file is not None else fetch_records(args.url, args.api_key, args.id)
    try:
        records = [DecisionRecord.from_json(text) for text in texts]
    except InvalidRequest as error:
        raise SetupError(error.message) from error
    for record in records:
        sys.stdout.write(record.to_json() + "\n" if args.json else "\n".join(explain(record)) + "\n")
    return 0 if all(replay(record) == record.decision for record in records) else _EXIT_DIFFERS


def fetch_records(url: str, api_key: str | None, name: str) -> list[str]:
    """The records of one request, one per prompt. Raises: ApiError, ConnectionFailed."""
    try:
        with httpx.Client(base_url=url, timeout=_TIMEOUT_S) as http:
            response = http.get(f"/v1/decisions/{quote(name, safe='')}", headers=headers(api_key))
    except httpx.HTTPError as error:
        raise ConnectionFailed(f"no Tandem gateway answers at {url}; start one with: tandem serve") from error
    if response.status_code != 200:
        raise read_error(response.status_code, response.content)
    return [json.dumps(record) for record in response.json()["records"]]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{path} can't be read ({error}); name a file with one record") from error


COMMAND = Command("explain", "say why a request went where it went, and replay the decision", _add_arguments, _run)
