"""The model repository of one start: a profile with what the machine and the engines ask for."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from build_engines.manifest import Manifest
from build_engines.profile import fill, load_profile
from build_engines.render import render_files
from tandem.protocol import ENGINE_MODELS


def write_repository(folder: Path, profile_name: str | Path, manifests: Mapping[str, Manifest], threads: int) -> None:
    """Write the repository into ``folder``, which is emptied first. ``profile_name``: one of ours, or the path of a YAML file.

    ``max_seq_len`` of all models is that of the engine with the shortest context, and at most the profile's.
    Raises: SetupError when the profile is not complete.
    """
    profile = fill(load_profile(profile_name), {})  # a profile for GPUs needs a plan, and is refused here
    limit = min(manifest.limits["max_seq_len"] for manifest in manifests.values())
    models = {name: _adapted(name, model, limit, threads) for name, model in profile.models.items()}
    shutil.rmtree(folder, ignore_errors=True)
    for name in models:
        (folder / name / "1").mkdir(parents=True)
    for file, text in render_files(replace(profile, models=models)).items():
        (folder / file).write_text(text, encoding="utf-8")


def engine_set_hash(manifests: Mapping[str, Manifest]) -> str:
    """Names the set of engines behind an answer (``system_fingerprint``)."""
    parts = "\n".join(f"{name} {manifest.content_hash}" for name, manifest in sorted(manifests.items()))
    return "fp_" + hashlib.sha256(parts.encode()).hexdigest()[:12]


def _adapted(name: str, model: Mapping[str, Any], max_seq_len: int, threads: int) -> Mapping[str, Any]:
    parameters = dict(model.get("parameters", {}))
    if "max_seq_len" in parameters:  # neither the ensemble nor the route classifier has one
        parameters["max_seq_len"] = min(parameters["max_seq_len"], max_seq_len)
    if name in ENGINE_MODELS:
        parameters["num_threads"] = threads
    return {**model, "parameters": parameters} if parameters else model
