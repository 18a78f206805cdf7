"""What fills the placeholders of a GPU profile: the numbers of a plan, and the container that everything is bound to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build_engines.profile import OMIT
from build_engines.spec import KvDtype, Speculation
from tandem.errors import SetupError
from tandem.protocol import ENGINE_MODELS

DEPLOYMENT_FILE = "tandem-deployment.json"
_IMAGE = re.compile(r"(?P<name>[^@\s]+?):(?P<year>\d\d)\.(?P<month>\d\d)-[a-z0-9-]+@sha256:[0-9a-f]{64}")
_FIRST_IMAGE, _LAST_IMAGE = (26, 4), (26, 7)
_WAITING_PER_ENGINE = 48


def check_image(image: str) -> str:
    """The container, pinned by digest and of a release with TensorRT-LLM 1.2.1. Raises: SetupError."""
    match = _IMAGE.fullmatch(image)
    if match is None:
        raise SetupError(
            f"--image: {image!r} has no tag and digest; engines are bound to one build of the container, so give "
            "NAME:26.07-trtllm-python-py3@sha256:… (docker inspect shows the digest under RepoDigests)"
        )
    release = (int(match["year"]), int(match["month"]))
    if not _FIRST_IMAGE <= release <= _LAST_IMAGE:
        raise SetupError(
            f"--image: release {match['year']}.{match['month']} does not hold TensorRT-LLM 1.2.1; use 26.04 to 26.07 (later ones "
            "may have no engine backend at all)"
        )
    return image


def profile_values(plan: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    """Placeholder -> value. ``plan``: as :func:`build_engines.gpu_plan.read_plan` gives it; ``paths``: those it was made with.

    Raises: SetupError when the plan lacks one of the engines that the router calls.
    """
    engines = plan["engines"]
    missing = [name for name in ENGINE_MODELS if name not in engines]
    if missing:
        raise SetupError(f"the plan has no {', '.join(missing)}; the router calls {', '.join(ENGINE_MODELS)}")
    ranks = {rank["engine"]: rank for rank in plan["memory"]["ranks"]}
    router = plan["router"]
    values: dict[str, Any] = {
        "tokenizer_dir": _model_dir(paths, engines["slow"]),
        "engine_dirs": ",".join(f"{name}={_model_dir(paths, spec)}" for name, spec in engines.items()),
        "max_seq_len": min(spec["max_seq_len"] for spec in engines.values()),
        "max_in_flight": router["max_in_flight"],
        # A request holds a thread while it runs and while it waits for its engine.
        "max_concurrent_requests": len(engines) * (router["max_in_flight"] + _WAITING_PER_ENGINE),
        "tokens_per_block": router["tokens_per_block"],
        "kv_cache_tokens": min(rank["kv_tokens"] for rank in ranks.values()),
    }
    for name, spec in engines.items():
        own = _engine_values(name, spec, ranks[name], paths)
        own["has_one_tenant"] = spec["kv_reuse"] and not router["is_multi_tenant"]
        values |= {f"{name}.{key}": value for key, value in own.items()}
    return values


def deployment_json(plan: Mapping[str, Any], image: str) -> str:
    """What ``verify`` holds engines and repository against; lies beside the models, where Triton looks at folders only."""
    kept = {key: plan[key] for key in ("name", "flow", "target", "gpu", "num_gpus", "router", "engines", "memory")}
    return json.dumps({"format": 1, "image": image, **kept}, indent=2) + "\n"


def write_deployment(out_dir: Path, plan: Mapping[str, Any], image: str) -> Path:
    path = out_dir / DEPLOYMENT_FILE
    path.write_text(deployment_json(plan, image), encoding="utf-8")
    return path


def _engine_values(name: str, spec: Mapping[str, Any], rank: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    is_guided = spec["guided_backend"] != "none"
    engine_dir = f"{paths['work']}/{name}/engine"
    # The LLM API loads an unquantized model from its own folder.
    is_exported = spec["precision"] != "fp16"
    return {
        **{key: spec[key] for key in ("max_batch_size", "max_num_tokens", "max_seq_len", "tokens_per_block", "tp", "pp")},
        **{key: spec[key] for key in ("batch_policy", "kv_reuse", "chunked_context")},
        "engine_dir": engine_dir,
        "checkpoint_dir": f"{paths['work']}/{name}/checkpoint" if is_exported else _model_dir(paths, spec),
        "kv_tokens": rank["kv_tokens"],
        "gpu_ids": ",".join(map(str, spec["gpus"])),
        "is_guided": is_guided,
        "guided_backend": spec["guided_backend"] if is_guided else OMIT,
        "tokenizer_info": f"{engine_dir}/xgrammar_tokenizer_info.json" if is_guided else OMIT,
        "takes_drafts": spec["speculation"] == Speculation.DRAFT_TOKENS_EXTERNAL.value,
        "has_no_reuse": not spec["kv_reuse"],
        "kv_dtype_llmapi": "fp8" if spec["kv_dtype"] == KvDtype.FP8.value else "auto",
    }


def _model_dir(paths: Mapping[str, str], spec: Mapping[str, Any]) -> str:
    return f"{paths['models']}/{str(spec['model']).rstrip('/').rpartition('/')[2]}"
