"""``tandem engines``: the CPU engines and the model repository, over ``build_engines``."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tandem.errors import SetupError
from tandem.protocol import ENGINE_MODELS, ROUTE_CLASSIFIER_MODEL
from tandem_cli import gpu_engines
from tandem_cli.command import Command, add_home_argument
from tandem_cli.serve import add_model_arguments

_EXIT_DAMAGED = 1


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    build = actions.add_parser("build", help="build the engines that are missing or damaged")
    add_home_argument(build)
    add_model_arguments(build)
    build.add_argument(
        "--plan", type=Path, metavar="FILE", help="build the GPU engines of this plan instead; needs GPU and trtllm-build"
    )
    build.add_argument("--image", help="with --plan: the container this runs in, with tag and digest")
    build.set_defaults(action=_build)
    show = actions.add_parser("list", help="list the engines in use")
    add_home_argument(show)
    show.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    show.set_defaults(action=_list)
    verify = actions.add_parser("verify", help="hash every file of the engines in use; exit code 1 if one is damaged or missing")
    add_home_argument(verify)
    verify.add_argument("--engine-dir", type=Path, metavar="DIR", help="check this TensorRT-LLM engine folder instead")
    verify.add_argument(
        "--repository", type=Path, metavar="DIR", help="with --engine-dir: hold it against this rendered repository"
    )
    verify.set_defaults(action=_verify)
    render = actions.add_parser("render", help="write the Triton model repository of a profile")
    render.add_argument("--profile", default="cpu", help="a name in build_engines/profiles (default %(default)s)")
    render.add_argument("--out", type=Path, default=Path("model_repository"), metavar="DIR", help="where to (default %(default)s)")
    render.add_argument("--plan", type=Path, metavar="FILE", help="plan of the GPU deployment (profiles trtllm and llmapi)")
    render.add_argument("--image", help="container of the GPU deployment, with tag and digest")
    render.set_defaults(action=_render)
    gpu_engines.add_actions(actions)


def _build(args: argparse.Namespace) -> int:
    if args.plan is not None:
        return gpu_engines.build(args)
    from build_engines.encoder import ensure_encoder
    from build_engines.ensure import ensure_engines
    from build_engines.progress import make_reporter

    reporter = make_reporter()
    built = ensure_engines(args.home, args.fast_model, args.slow_model, reporter)
    for name, folder in {**built, ROUTE_CLASSIFIER_MODEL: ensure_encoder(args.home, reporter)}.items():
        sys.stdout.write(f"{name} {folder}\n")
    return 0


def _list(args: argparse.Namespace) -> int:
    found = {name: _describe(args.home, name) for name in ENGINE_MODELS}
    if args.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return 0
    table = Table("engine", "precision", "MB", "weights", "content hash", title=f"Engines in {args.home}")
    for name, engine in found.items():
        if engine is None:
            table.add_row(name, "not built", "", "", "")
        else:
            size_mb = sum(file["size_bytes"] for file in engine["files"].values()) / 1e6
            table.add_row(name, engine["precision"], f"{size_mb:.0f}", engine["weights"], engine["content_hash"])
    Console(highlight=False).print(table)
    return 0


def _describe(home: Path, name: str) -> dict[str, Any] | None:
    """The manifest of the engine in use, or None when there is none. Raises: SetupError when it cannot be read."""
    from build_engines.manifest import read_manifest

    folder = _in_use(home, name)
    return asdict(read_manifest(folder)) if folder.exists() else None


def _verify(args: argparse.Namespace) -> int:
    if args.engine_dir is not None:
        return gpu_engines.verify(args)
    from build_engines.encoder import find_encoder_damage
    from build_engines.manifest import find_damage

    is_whole = True
    for name in ENGINE_MODELS:
        folder = _in_use(args.home, name)
        damage = find_damage(folder, is_full_check=True) if folder.exists() else "not built"
        is_whole &= damage is None
        sys.stdout.write(f"{name} {damage or 'whole'}\n")
    folder = _in_use(args.home, ROUTE_CLASSIFIER_MODEL)
    damage = find_encoder_damage(folder) if folder.exists() else "not built"
    is_whole &= damage is None
    sys.stdout.write(f"{ROUTE_CLASSIFIER_MODEL} {damage or 'whole'}\n")
    return 0 if is_whole else _EXIT_DAMAGED


def _in_use(home: Path, name: str) -> Path:
    return home / "engines" / name / "current"


def _render(args: argparse.Namespace) -> int:
    from build_engines.gpu_plan import read_plan
    from build_engines.profile_values import check_image, profile_values, write_deployment
    from build_engines.render import render

    if (args.plan is None) != (args.image is None):
        raise SetupError("give --plan and --image together: a GPU repository is bound to both")
    plan = None if args.plan is None else read_plan(args.plan)
    if plan is not None and plan["flow"] != args.profile:
        raise SetupError(f"--plan: {args.plan} is for profile {plan['flow']}, not {args.profile}")
    image = None if args.image is None else check_image(args.image)
    try:
        written = render(args.profile, args.out, None if plan is None else profile_values(plan, plan["paths"]))
        if plan is not None and image is not None:
            written += (write_deployment(args.out, plan, image),)
    except OSError as error:
        raise SetupError(f"--out: {args.out} cannot be written ({error.strerror})") from error
    sys.stdout.write(f"{len(written)} files of profile {args.profile} written to {args.out}\n")
    return 0


def _run(args: argparse.Namespace) -> int:
    code: int = args.action(args)
    return code


COMMAND = Command(
    "engines", "build, list and check engines; plan GPU deployments; render the model repository", _add_arguments, _run
)
