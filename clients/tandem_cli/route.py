"""``tandem route``: train the head of the route classifier, and measure it beside its baselines."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tandem.errors import SetupError
from tandem.protocol import ROUTE_TASKS
from tandem.routing import quality
from tandem.routing.classifier import Described, describe
from tandem.routing.encoder import SentenceEncoder
from tandem.routing.head import Head, load_head, shipped_folder
from tandem.routing.head_training import Examples, Goal, Settings, build_features, build_targets, predict_unseen, train_head
from tandem.routing.labelled import Labelled, parse_rows, read_labelled
from tandem_cli.command import Command, add_home_argument

_BUILT_IN = "built-in"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    data_help = (
        f"JSONL of labelled prompts or logged outcomes, or {_BUILT_IN} (default): the prompts that the shipped head is made of"
    )
    train = actions.add_parser("train", help="train a head; without options this remakes the shipped one")
    train.add_argument("--data", default=_BUILT_IN, metavar="FILE", help=data_help)
    train.add_argument(
        "--out", type=Path, default=shipped_folder(), metavar="DIR", help="where to (default: over the shipped head)"
    )
    goal = train.add_mutually_exclusive_group()
    goal.add_argument(
        "--target-fast-share", type=float, metavar="X", help="threshold that sends this share of the data to the fast path"
    )
    goal.add_argument(
        "--max-quality-loss", type=float, metavar="X", help="threshold that serves at most this share of the data badly"
    )
    add_home_argument(train)
    train.set_defaults(action=_train)
    evaluate = actions.add_parser("eval", help="accuracy, calibration, APGR and CPT beside the baselines")
    evaluate.add_argument("--data", default=_BUILT_IN, metavar="FILE", help=data_help)
    evaluate.add_argument("--head", type=Path, metavar="DIR", help="folder of a head (default: the shipped one)")
    evaluate.add_argument("--cross-validate", action="store_true", help="train on the data in five folds instead of using a head")
    evaluate.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    add_home_argument(evaluate)
    evaluate.set_defaults(action=_eval)


def _train(args: argparse.Namespace) -> int:
    encoder = _encoder(args.home)
    rows = [row for row in _read(args.data) if not row.is_held_out]
    goal = Goal(target_fast_share=args.target_fast_share, max_quality_loss=args.max_quality_loss)
    made_by = {"data": Path(args.data).name, "num_prompts": len(rows), "num_groups": len({row.group for row in rows})}
    head = train_head(_examples(rows, _describe(encoder, rows)), ROUTE_TASKS, encoder.identity, Settings(), goal, made_by)
    head.save(args.out)
    point = head.operating_point
    sys.stdout.write(
        f"{len(rows)} prompts of {made_by['num_groups']} groups; head written to {args.out}\n"
        "in the rules file, under stages.classifier (a threshold there is a win rate):\n"
        f"threshold: {1 - point.threshold:.4f}\nunsure: [{point.grey_low:.4f}, {point.grey_high:.4f}]\n"
    )
    return 0


def _eval(args: argparse.Namespace) -> int:
    encoder = _encoder(args.home)
    rows = _read(args.data)
    if not args.cross_validate:
        rows = [row for row in rows if row.is_held_out] or rows
    if not rows:
        raise SetupError(f"--data: {args.data} holds no prompts")
    described = _describe(encoder, rows)
    if args.cross_validate:
        scores, threshold = _unseen_scores(rows, described), 0.5
    else:
        head = load_head(args.head)
        scores, threshold = head_scores(head, described), head.operating_point.threshold
    result = evaluate_scores(rows, described, scores, threshold)
    table = Table("figure", "value", title="tandem route eval")
    for name, value in result.items():
        table.add_row(name, json.dumps(value))
    Console(stderr=args.json, highlight=False).print(table)
    if args.json:
        sys.stdout.write(json.dumps(result, allow_nan=False) + "\n")
    return 0


def evaluate_scores(
    rows: Sequence[Labelled], described: Sequence[Described], scores: quality.Array, threshold: float
) -> dict[str, Any]:
    """All figures that the rows allow: those of the labels, and for outcomes those of routing with their baselines."""
    fast = np.array([row.fast for row in rows])
    result: dict[str, Any] = {"num_prompts": len(rows), "threshold": threshold}
    is_plain = np.isin(fast, (0.0, 1.0))
    labels, plain = fast[is_plain], scores[is_plain]
    result["accuracy"] = round(quality.accuracy(plain, labels, threshold), 4)
    result["accuracy_ci95"] = _interval(lambda at: quality.accuracy(plain[at], labels[at], threshold), len(labels))
    for language in sorted({row.language for row in rows} - {""}):
        of_it = np.array([row.language == language for row in rows]) & is_plain
        result[f"accuracy_{language}"] = round(quality.accuracy(scores[of_it], fast[of_it], threshold), 4)
    result["accuracy_of_the_commoner_label"] = round(float(max(labels.mean(), 1 - labels.mean())), 4)
    result["brier"] = round(quality.brier(scores, fast), 4)
    result["ece"] = round(quality.ece(scores, fast), 4)
    result["fast_share"] = round(float((scores >= threshold).mean()), 4)
    if all(row.gain is not None for row in rows):
        result.update(_routing_figures(rows, described, scores))
    return result


def _routing_figures(rows: Sequence[Labelled], described: Sequence[Described], scores: quality.Array) -> dict[str, Any]:
    gain = np.array([row.gain or 0.0 for row in rows])
    vectors = np.stack([each.layer_means[-1] for each in described]).astype(np.float64)
    lengths = -np.array([float(len(row.prompt)) for row in rows])
    return {
        "apgr": round(quality.apgr(scores, gain), 4),
        "apgr_ci95": _interval(lambda at: quality.apgr(scores[at], gain[at]), len(rows)),
        "cpt50": round(quality.cpt(scores, gain, 0.5), 4),
        "cpt80": round(quality.cpt(scores, gain, 0.8), 4),
        "apgr_baselines": {
            "random": 0.5,
            "length": round(quality.apgr(lengths, gain), 4),
            "knn": round(quality.apgr(_neighbours_in_folds(vectors, gain), gain), 4),
        },
    }


def _neighbours_in_folds(vectors: quality.Array, gain: quality.Array) -> quality.Array:
    folds = np.random.default_rng(0).integers(0, 5, len(gain))
    scores = np.zeros(len(gain))
    for fold in range(5):
        inside = folds == fold
        scores[inside] = -quality.neighbour_scores(vectors[~inside], gain[~inside], vectors[inside], 60)
    return scores


def _interval(figure: Any, num_rows: int) -> list[float]:
    return [round(value, 4) for value in quality.bootstrap_interval(figure, num_rows)]


def head_scores(head: Head, described: Sequence[Described]) -> quality.Array:
    return np.array([head.score(each.layer_means, each.ngrams, each.surface)[0] for each in described])


def _unseen_scores(rows: Sequence[Labelled], described: Sequence[Described]) -> quality.Array:
    """Of each fold by a head trained on the others, brought to 0..1."""
    examples, settings = _examples(rows, described), Settings()
    targets = build_targets(examples, len(ROUTE_TASKS))
    unseen = predict_unseen(build_features(described, settings).matrix, targets, examples.groups, settings.ridge)
    return np.clip((unseen.fast + 1.0) / 2.0, 0.0, 1.0)


def _examples(rows: Sequence[Labelled], described: Sequence[Described]) -> Examples:
    tasks = [-1 if row.task is None else ROUTE_TASKS.index(row.task) for row in rows]
    return Examples(described, np.array([row.fast for row in rows]), np.array(tasks, np.int64), [row.group for row in rows])


def _describe(encoder: SentenceEncoder, rows: Sequence[Labelled]) -> list[Described]:
    from build_engines.progress import make_reporter

    described = []
    with make_reporter().stage(f"encoding {len(rows)} prompts") as advance:
        for number, row in enumerate(rows, 1):
            described.append(describe(encoder, row.prompt))
            advance(number, len(rows))
    return described


def _encoder(home: Path) -> SentenceEncoder:
    from build_engines.encoder import ensure_encoder
    from build_engines.progress import make_reporter

    return SentenceEncoder.load(ensure_encoder(home, make_reporter()))


def _read(data: str) -> list[Labelled]:
    if data != _BUILT_IN:
        return read_labelled(Path(data))
    from build_engines.route_data import training_rows

    return parse_rows(training_rows())


def _run(args: argparse.Namespace) -> int:
    code: int = args.action(args)
    return code


COMMAND = Command("route", "train and measure the route classifier", _add_arguments, _run)
