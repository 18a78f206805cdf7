"""Write the manifest of a CPU engine; its form is that of every engine: ``build_engines.manifest``."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

from build_engines.cpu_engine import BUILDER_VERSION, CALIBRATION_FILE, describe_build
from build_engines.engine_spec import CpuEngineSpec, Precision
from build_engines.manifest import ENGINE_FILES, MANIFEST, FileRecord, Manifest, sha256_of
from tandem.models.weights import WeightSource

_TOOLS = ("openvino", "nncf", "numpy", "gguf", "tokenizers")


def write_manifest(folder: Path, source: WeightSource, spec: CpuEngineSpec, *, weights_sha256: str, content_hash: str) -> None:
    """Hash every engine file in ``folder`` and write the manifest beside them."""
    files = {name: FileRecord((folder / name).stat().st_size, sha256_of(folder / name)) for name in ENGINE_FILES}
    manifest = Manifest(
        engine=spec.name,
        precision=spec.precision.value,
        group_size=spec.group_size,
        content_hash=content_hash,
        builder_version=BUILDER_VERSION,
        weights=source.origin.name,
        weights_sha256=weights_sha256,
        tokenizer_sha256=files["tokenizer.json"].sha256,
        limits={"max_seq_len": source.config.max_position_embeddings, "vocab_size": source.config.vocab_size},
        tools={"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in _TOOLS},
        files=files,
        commands=describe_build(spec),
        calibration=_calibration(spec),
    )
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=2) + "\n", encoding="utf-8")


def _calibration(spec: CpuEngineSpec) -> dict[str, Any] | None:
    """The texts that an engine with activation-aware scales was calibrated on."""
    if spec.precision is not Precision.INT4_AWQ:
        return None
    samples = len(json.loads(CALIBRATION_FILE.read_text(encoding="utf-8")))
    return {"kind": "general", "samples": samples, "sha256": sha256_of(CALIBRATION_FILE)}
