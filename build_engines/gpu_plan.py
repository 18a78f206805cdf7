"""``tandem engines plan``: whether a deployment can work, what it will hold and which commands make it, before any GPU is used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from build_engines.commands import TENSORRT_LLM_VERSION, TRITON_IMAGE, Paths, Step, commands
from build_engines.gpu_memory import MemoryPlan, check_memory, plan_memory
from build_engines.rules import Finding, check, has_errors
from build_engines.spec import Deployment
from tandem.errors import SetupError

PLAN_FORMAT = 1


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """``memory`` is None while findings hold an error that makes arithmetic pointless (a tp of 0, ranks without GPUs)."""

    deployment: Deployment
    findings: tuple[Finding, ...]
    memory: MemoryPlan | None
    steps: tuple[Step, ...]
    paths: Paths

    @property
    def is_possible(self) -> bool:
        return not has_errors(self.findings)

    @property
    def estimated_s(self) -> int:
        return sum(step.estimated_s for step in self.steps)


_NO_ARITHMETIC = {
    "sizes-positive",
    "gpus-match-ranks",
    "gpu-id-range",
    "group-size-kernel",
    "heads-by-tp",
    "tokens-per-block-power-of-two",
}


def make_plan(deployment: Deployment, paths: Paths, plan_file: str) -> GpuPlan:
    """Pure: rules, memory, commands. ``plan_file``: the name under which ``render`` will find this plan."""
    findings = check(deployment)
    if {finding.rule for finding in findings} & _NO_ARITHMETIC:
        return GpuPlan(deployment, findings, None, (), paths)
    memory = plan_memory(deployment)
    findings += tuple(check_memory(deployment, memory))
    ordered = tuple(sorted(findings, key=lambda finding: finding.severity.value))
    return GpuPlan(deployment, ordered, memory, commands(deployment, paths, plan_file), paths)


def to_json(plan: GpuPlan) -> str:
    """What ``render`` and ``build`` read back; everything a person sees is in it too."""
    deployment = plan.deployment
    document = {
        "format": PLAN_FORMAT,
        "name": deployment.name,
        "is_possible": plan.is_possible,
        "target": {"tensorrt_llm": TENSORRT_LLM_VERSION, "image": TRITON_IMAGE},
        "flow": deployment.flow,
        "gpu": asdict(deployment.gpu),
        "num_gpus": deployment.num_gpus,
        "router": asdict(deployment.router),
        "engines": {spec.name: asdict(spec) for spec in deployment.engines},
        "shapes": {name: asdict(shape) for name, shape in deployment.shapes.items()},
        "findings": [asdict(finding) for finding in plan.findings],
        "memory": None if plan.memory is None else asdict(plan.memory),
        "paths": asdict(plan.paths),
        "steps": [asdict(step) | {"shell": step.shell} for step in plan.steps],
        "estimated_s": plan.estimated_s,
    }
    return json.dumps(document, indent=2, default=_plain) + "\n"


def _plain(value: object) -> object:
    return value.value if isinstance(value, Enum) else str(value)


def read_plan(path: Path) -> Mapping[str, Any]:
    """A plan as it was written. Raises: SetupError when it is none, or one that cannot work."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SetupError(
            f"{path}: the plan cannot be read ({type(error).__name__}); write it with `tandem engines plan`"
        ) from error
    if not isinstance(document, dict) or document.get("format") != PLAN_FORMAT:
        raise SetupError(f"{path} is no plan of this version; write it anew with `tandem engines plan`")
    if not document["is_possible"]:
        errors = [finding["rule"] for finding in document["findings"] if finding["severity"] == "error"]
        raise SetupError(f"{path}: the plan has errors ({', '.join(errors)}); mend them first")
    return document
