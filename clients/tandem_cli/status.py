"""``tandem status``: is it ready, what does it do, how full is it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from tandem_cli.command import Command, add_url_arguments
from tandem_client.errors import ConnectionFailed

_EXIT_NOT_READY = 1
_TIMEOUT_S = 10.0
# Metric -> (key of the report, label that names the value)
_ENGINE_METRICS = {
    "nv_trt_llm_request_metrics": ("requests", "request_type"),
    "nv_trt_llm_kv_cache_block_metrics": ("kv_blocks", "kv_cache_block_type"),
}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_url_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def _run(args: argparse.Namespace) -> int:
    report = read_status(args.url)
    if args.json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        _show(report)
    return 0 if report["status"] == "ready" else _EXIT_NOT_READY


def read_status(url: str) -> dict[str, Any]:
    """The report as plain data. Raises: ConnectionFailed when there is no gateway at ``url``."""
    try:
        with httpx.Client(base_url=url, timeout=_TIMEOUT_S) as http:
            ready = http.get("/readyz").json()
            metrics = http.get("/metrics").text
    except (httpx.HTTPError, ValueError) as error:
        raise ConnectionFailed(f"no Tandem gateway answers at {url}; start one with: tandem serve") from error
    return {"url": url, **ready, **summarize(metrics)}


def summarize(metrics: str) -> dict[str, Any]:
    """What the metrics say: outcomes of requests, answers by path and engine, requests and KV blocks of each engine."""
    outcomes: dict[str, int] = {}
    paths: dict[str, int] = {}
    engines: dict[str, dict[str, dict[str, float]]] = {}
    for name, labels, value in _samples(metrics):
        if name == "tandem_gateway_requests_total":
            outcomes[labels["outcome"]] = outcomes.get(labels["outcome"], 0) + int(value)
        elif name == "tandem_gateway_path_total" and labels["path"]:
            key = f"{labels['path']}/{labels['engine']}"
            paths[key] = paths.get(key, 0) + int(value)
        elif name in _ENGINE_METRICS:
            group, label = _ENGINE_METRICS[name]
            engines.setdefault(labels["model"], {}).setdefault(group, {})[labels[label]] = value
    return {"outcomes": outcomes, "answers_by_path": paths, "engines": engines}


def _samples(metrics: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def _show(report: dict[str, Any]) -> None:
    console = Console(highlight=False)
    console.print(f"{report['url']}: [bold]{report['status']}[/bold], {report['in_flight']} requests in flight")
    parts = Table("part", "ready", title="Parts")
    for name, is_ready in report["backend"]["parts"].items():
        parts.add_row(name, "yes" if is_ready else "no")
    console.print(parts)
    if report["answers_by_path"]:
        total = sum(report["answers_by_path"].values())
        paths = Table("path/engine", "answers", "share", title="Answers")
        for name, count in sorted(report["answers_by_path"].items()):
            paths.add_row(name, str(count), f"{count / total:.0%}")
        console.print(paths)
    if report["engines"]:
        queues = Table("engine", "running", "waiting", "KV blocks used", "of", title="Engines")
        for name, groups in sorted(report["engines"].items()):
            requests, blocks = groups.get("requests", {}), groups.get("kv_blocks", {})
            cells = (requests.get("scheduled"), requests.get("waiting"), blocks.get("used"), blocks.get("max"))
            queues.add_row(name, *("-" if value is None else f"{value:.0f}" for value in cells))
        console.print(queues)


COMMAND = Command("status", "show readiness, paths and queues of a running server", _add_arguments, _run)
