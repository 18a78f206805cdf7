"""``tandem engines build --plan``: run the steps of a plan where GPU and tools are, and write a manifest beside each engine.

What must be there is looked at first. On a machine without it nothing runs: the plan stands, and one sentence says where to take
it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from build_engines.calibration import calibration_texts
from build_engines.manifest import MANIFEST, FileRecord, Manifest, sha256_of
from build_engines.progress import Reporter
from build_engines.spec import Calibration, Flow
from tandem.errors import SetupError

GPU_BUILDER_VERSION = 1
_TOOLS = ("tensorrt_llm", "tensorrt", "nvidia-modelopt", "torch")
_BUILD_STAGES = ("quantize", "verify", "build", "guided", "smoke")
_GIB = 1 << 30

Run = Callable[[Sequence[str], Mapping[str, str]], int]
"""Runs a command with additional environment variables; the exit code."""


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """As nvidia-smi reports it."""

    name: str
    sm: int
    memory_gib: float
    driver: str


@dataclass(frozen=True, slots=True)
class Machine:
    """What a build needs of the machine it runs on."""

    gpus: tuple[FoundGpu, ...]
    has_trtllm_build: bool
    free_bytes: int
    tools: Mapping[str, str]


def probe(work: Path) -> Machine:
    """Look at this machine; raises nothing."""
    folder = next((parent for parent in (work, *work.parents) if parent.exists()), Path("/"))
    found = {name: _version(name) for name in _TOOLS}
    tools = {"python": platform.python_version(), **{name: version for name, version in found.items() if version}}
    return Machine(_nvidia_smi(), shutil.which("trtllm-build") is not None, shutil.disk_usage(folder).free, tools)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def run_command(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run with the output of the program on this terminal."""
    return subprocess.run(list(argv), env={**os.environ, **env}, check=False).returncode  # noqa: S603


def check_machine(plan: Mapping[str, Any], machine: Machine) -> None:
    """Raises: SetupError with one sentence when this machine cannot build the plan."""
    where = f"take the plan to a machine with {plan['num_gpus']} x {plan['gpu']['name']} and run it in {plan['paths']['image']}"
    if not machine.gpus:
        raise SetupError(f"no NVIDIA GPU answers here (nvidia-smi); {where}")
    if not machine.has_trtllm_build:
        raise SetupError(f"trtllm-build is not on the path; {where}")
    version, wanted = machine.tools.get("tensorrt_llm"), plan["target"]["tensorrt_llm"]
    if version != wanted:
        raise SetupError(f"tensorrt_llm is {version} here and the plan is for {wanted}; {where}")
    if len(machine.gpus) < plan["num_gpus"]:
        raise SetupError(f"{len(machine.gpus)} GPUs are here and the plan needs {plan['num_gpus']}; {where}")
    for gpu in machine.gpus[: plan["num_gpus"]]:
        if gpu.sm != plan["gpu"]["sm"] or gpu.memory_gib < plan["gpu"]["memory_gib"] * 0.97:
            raise SetupError(f"the plan is for another GPU than {gpu.name} (SM {gpu.sm}, {gpu.memory_gib:.1f} GiB); {where}")
    needed = _needed_bytes(plan)
    if machine.free_bytes < needed:
        free = machine.free_bytes / _GIB
        raise SetupError(f"{plan['paths']['work']}: {needed / _GIB:.0f} GiB are needed on this disk and {free:.0f} are free")


def build(plan: Mapping[str, Any], image: str, machine: Machine, run: Run, reporter: Reporter) -> tuple[Path, ...]:
    """The folders of the built engines. An engine whose manifest fits the plan is not built again.

    Raises: SetupError naming the step that failed; what earlier steps made stays, and the next call goes on from there.
    """
    if plan["flow"] != Flow.TRTLLM.value:
        raise SetupError("the LLM API builds no engine: run the quantize steps of the plan, then render")
    check_machine(plan, machine)
    folders = []
    shared = [step for step in plan["steps"] if step["stage"] == "calibration"]
    for step in shared:
        _run_step(step, run, reporter)
    for name, spec in plan["engines"].items():
        folder = Path(plan["paths"]["work"]) / name / "engine"
        steps = [step for step in plan["steps"] if step["engine"] == name and step["stage"] in _BUILD_STAGES]
        wanted = content_hash(plan, name)
        if _content_hash_of(folder) == wanted:
            reporter.message(f"{name}: built already")
        else:
            last = steps[-1]  # verify reads the manifest, so it comes after that is written
            for step in steps[:-1]:
                _run_step(step, run, reporter)
            write_gpu_manifest(folder, plan, name, spec, image, machine)
            _run_step(last, run, reporter)
        folders.append(folder)
    return tuple(folders)


def content_hash(plan: Mapping[str, Any], name: str) -> str:
    """Names what an engine is made from: its spec, its commands, its target and the calibration texts. Weights: by their folder."""
    spec = plan["engines"][name]
    steps = [step["argv"] for step in plan["steps"] if step["engine"] == name]
    parts = {
        "spec": spec,
        "steps": steps,
        "target": plan["target"],
        "gpu": plan["gpu"]["sm"],
        "calibration": _calibration_sha256(spec),
        "builder": GPU_BUILDER_VERSION,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def write_gpu_manifest(
    folder: Path, plan: Mapping[str, Any], name: str, spec: Mapping[str, Any], image: str, machine: Machine
) -> Manifest:
    """Hash every file of a built engine and write the manifest beside them. Raises: SetupError when there is no engine."""
    paths = sorted(path for path in folder.iterdir() if path.is_file() and path.name != MANIFEST) if folder.is_dir() else []
    if not any(path.suffix == ".engine" for path in paths):
        raise SetupError(f"{folder}: the build left no engine there")
    model = Path(plan["paths"]["models"]) / str(spec["model"]).rstrip("/").rpartition("/")[2]
    gpu = machine.gpus[spec["gpus"][0]]
    manifest = Manifest(
        engine=name,
        precision=spec["precision"],
        group_size=spec["group_size"],
        content_hash=content_hash(plan, name),
        builder_version=GPU_BUILDER_VERSION,
        weights=model.name,
        weights_sha256=_folder_sha256(model),
        tokenizer_sha256=sha256_of(model / "tokenizer.json") if (model / "tokenizer.json").is_file() else "",
        limits={
            **{key: spec[key] for key in ("max_batch_size", "max_num_tokens", "max_seq_len", "max_draft_len", "tokens_per_block")},
            "vocab_size": plan["shapes"][spec["model"]]["vocab_size"],
        },
        tools=machine.tools,
        files={path.name: FileRecord(path.stat().st_size, sha256_of(path)) for path in paths},
        commands=tuple(tuple(step["argv"]) for step in plan["steps"] if step["engine"] == name),
        calibration={"kind": spec["calibration"], "samples": spec["calibration_samples"], "sha256": _calibration_sha256(spec)},
        gpu={"name": gpu.name, "sm": gpu.sm, "driver": gpu.driver},
        image=image,
    )
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=2) + "\n", encoding="utf-8")
    return manifest


def _run_step(step: Mapping[str, Any], run: Run, reporter: Reporter) -> None:
    what = f"{step['engine']}: {step['stage']}" if step["engine"] else step["stage"]
    with reporter.stage(what):
        code = run(step["argv"], dict(step["env"]))
    if code != 0:
        raise SetupError(f"{what} failed with exit code {code}: {step['shell']}")


def _content_hash_of(folder: Path) -> str | None:
    """Of the engine that is there, when its manifest can be read."""
    try:
        found: str | None = json.loads((folder / MANIFEST).read_text(encoding="utf-8")).get("content_hash")
    except (OSError, ValueError, AttributeError):
        return None
    return found


def _calibration_sha256(spec: Mapping[str, Any]) -> str:
    texts = "\n".join(calibration_texts(Calibration(spec["calibration"])))
    return hashlib.sha256(texts.encode()).hexdigest()


def _folder_sha256(folder: Path) -> str:
    """Over the files that decide an engine, by name and content."""
    total = hashlib.sha256()
    for pattern in ("*.safetensors", "*.json"):
        for path in sorted(folder.glob(pattern)):
            total.update(f"{path.name} {sha256_of(path)}\n".encode())
    return total.hexdigest()


def _needed_bytes(plan: Mapping[str, Any]) -> int:
    """Checkpoint and engine of each model, and half as much again while the builder works."""
    per_engine = {rank["engine"]: rank["weight_bytes"] * len(rank["gpus"]) for rank in plan["memory"]["ranks"]}
    return int(sum(per_engine.values()) * 2.5)


def _nvidia_smi() -> tuple[FoundGpu, ...]:
    query = ["nvidia-smi", "--query-gpu=name,compute_cap,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return parse_nvidia_smi(done.stdout) if done.returncode == 0 else ()


def parse_nvidia_smi(text: str) -> tuple[FoundGpu, ...]:
    """Lines of ``name, compute capability, MiB, driver``; a line of another form is no GPU."""
    gpus = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 4 and parts[1].replace(".", "").isdigit() and parts[2].isdigit():
            gpus.append(FoundGpu(parts[0], int(parts[1].replace(".", "")), int(parts[2]) / 1024, parts[3]))
    return tuple(gpus)
