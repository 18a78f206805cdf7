"""``tandem engines plan | checkpoint``: the actions of ``tandem engines`` that concern GPU engines. None of them needs "
"a GPU."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from build_engines.calibration import write_calibration_folders
from build_engines.checkpoint import check_checkpoint, patch_checkpoint
from build_engines.commands import Paths
from build_engines.gpu_build import build as build_plan
from build_engines.gpu_build import probe, run_command
from build_engines.gpu_memory import GIB, MemoryPlan
from build_engines.gpu_plan import GpuPlan, make_plan, read_plan, to_json
from build_engines.manifest import read_manifest
from build_engines.profile_values import check_image
from build_engines.progress import make_reporter
from build_engines.quantize import add_arguments as add_quantize_arguments
from build_engines.quantize import run as run_quantize
from build_engines.spec import load_deployment, preset_names
from build_engines.verify import Surroundings, surroundings_of, verify_engine
from tandem.errors import SetupError

_EXIT_NOT_POSSIBLE = 1


def add_actions(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    plan = actions.add_parser("plan", help="check a GPU deployment, plan its memory and print the commands; needs no GPU")
    source = plan.add_mutually_exclusive_group(required=True)
    source.add_argument("--preset", choices=preset_names(), help="a deployment that comes with Tandem")
    source.add_argument("--spec", type=Path, metavar="FILE", help="a deployment of your own (YAML, in the form of the presets)")
    plan.add_argument("--out", type=Path, metavar="FILE", help="write the plan as JSON, for render and build")
    plan.add_argument("--json", action="store_true", help="print the plan as one JSON object on stdout")
    defaults = Paths()
    for name, text in (
        ("models", "Hugging Face folders"),
        ("work", "checkpoints and engines"),
        ("calibration", "calibration texts"),
    ):
        plan.add_argument(f"--{name}", default=getattr(defaults, name), metavar="DIR", help=f"{text} (default %(default)s)")
    plan.add_argument(
        "--image", default=defaults.image, help="container to build and serve in, with its digest (default %(default)s)"
    )
    plan.set_defaults(action=_plan)
    calibration = actions.add_parser("calibration", help="write the calibration texts in the form that quantize.py reads")
    calibration.add_argument("--out", type=Path, default=Path("calibration"), metavar="DIR", help="where to (default %(default)s)")
    calibration.set_defaults(action=_calibration)
    quantize = actions.add_parser("quantize", help="quantize a Hugging Face folder with nvidia-modelopt, on a GPU or on a CPU")
    add_quantize_arguments(quantize)
    quantize.set_defaults(action=_quantize)
    checkpoint = actions.add_parser("checkpoint", help="mend and check the config of a TensorRT-LLM checkpoint before a build")
    checkpoint.add_argument("--model", type=Path, required=True, metavar="DIR", help="the Hugging Face folder it was made from")
    checkpoint.add_argument(
        "--checkpoint", type=Path, required=True, metavar="DIR", help="folder with config.json and rank*.safetensors"
    )
    checkpoint.set_defaults(action=_checkpoint)


def _plan(args: argparse.Namespace) -> int:
    deployment = load_deployment(args.preset or args.spec)
    paths = Paths(models=args.models, work=args.work, calibration=args.calibration, image=args.image)
    plan = make_plan(deployment, paths, str(args.out or "plan.json"))
    text = to_json(plan)
    if args.out is not None:
        args.out.write_text(text, encoding="utf-8")
    if args.json:
        sys.stdout.write(text)
    else:
        _show(plan, Console(highlight=False))
    return 0 if plan.is_possible else _EXIT_NOT_POSSIBLE


def _calibration(args: argparse.Namespace) -> int:
    for path in write_calibration_folders(args.out):
        sys.stdout.write(f"{path}\n")
    return 0


def _quantize(args: argparse.Namespace) -> int:
    sys.stdout.write(f"{run_quantize(args)}\n")
    return 0


def _checkpoint(args: argparse.Namespace) -> int:
    for key, (before, after) in patch_checkpoint(args.checkpoint, args.model).items():
        sys.stdout.write(f"mended {key}: {before!r} -> {after!r}\n")
    wrong = check_checkpoint(args.checkpoint, args.model)
    for sentence in wrong:
        sys.stdout.write(f"wrong {sentence}\n")
    return _EXIT_NOT_POSSIBLE if wrong else 0


def build(args: argparse.Namespace) -> int:
    """``engines build --plan``: run a plan's steps here. Raises: SetupError, at once where GPU or tools are missing."""
    plan = read_plan(args.plan)
    if args.image is None:
        raise SetupError("--image: name the container that this runs in, with tag and digest; engines are bound to it")
    machine = probe(Path(plan["paths"]["work"]))
    for folder in build_plan(plan, check_image(args.image), machine, run_command, make_reporter()):
        sys.stdout.write(f"{folder}\n")
    return 0


def verify(args: argparse.Namespace) -> int:
    """``engines verify --engine-dir``: one line per mismatch; exit code 1 when there are any."""
    machine = probe(args.engine_dir)
    around = Surroundings(machine.tools.get("tensorrt_llm"), machine.gpus[0].sm if machine.gpus else None)
    if args.repository is not None:
        rendered = surroundings_of(args.repository, read_manifest(args.engine_dir).engine)
        version = around.tensorrt_llm_version or rendered.tensorrt_llm_version
        around = replace(rendered, gpu_sm=around.gpu_sm, tensorrt_llm_version=version)
    mismatches = verify_engine(args.engine_dir, around)
    for mismatch in mismatches:
        sys.stdout.write(f"{mismatch.line}\n")
    if not mismatches:
        sys.stdout.write(f"{args.engine_dir} fits\n")
    return _EXIT_NOT_POSSIBLE if mismatches else 0


def _show(plan: GpuPlan, console: Console) -> None:
    deployment = plan.deployment
    if plan.memory is not None:
        console.print(_engines_table(plan, plan.memory))
        for gpu in plan.memory.gpus:
            console.print(
                f"GPU {gpu.gpu}: {gpu.used_bytes / GIB:.1f} of {gpu.total_bytes / GIB:.1f} GiB used by "
                f"{', '.join(gpu.engines) or 'nothing'}."
            )
    for finding in plan.findings:
        console.print(f"{finding.line}.", markup=False, soft_wrap=True)
    if not plan.is_possible:
        console.print(f"{deployment.name} cannot be built as it is: mend the errors above.", markup=False)
        return
    console.print(
        f"\nSteps, inside {plan.deployment.flow.value}'s container (about {plan.estimated_s // 60} min by rule of thumb):",
        markup=False,
    )
    for step in plan.steps:
        console.print(f"  {step.shell}", markup=False, soft_wrap=True)


def _engines_table(plan: GpuPlan, memory: MemoryPlan) -> Table:
    deployment = plan.deployment
    title = f"{deployment.name}: {deployment.num_gpus} x {deployment.gpu.name}, GiB per GPU"
    table = Table("engine", "weights", "other", "KV", "KV tokens", "full sequences", title=title)
    for spec in deployment.engines:
        rank = memory.rank(spec.name)
        gpus = ", ".join(map(str, spec.gpus))
        table.add_row(
            f"{spec.name}: {spec.model.rpartition('/')[2]}, {spec.precision.value}, GPU {gpus}",
            f"{rank.weight_bytes / GIB:.1f}",
            f"{(rank.activation_bytes + rank.runtime_bytes) / GIB:.1f}",
            f"{rank.kv_bytes / GIB:.1f}",
            f"{rank.kv_tokens:,}",
            f"{rank.concurrency} of {spec.max_seq_len:,}",
        )
    return table
