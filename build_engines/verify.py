"""Hold a TensorRT-LLM engine folder against its manifest, the runtime, the model repository and the machine; name every mismatch.

Most of these end as an assertion in C++ while a server loads, or not at all: an engine without paged context attention, say, simply
never reuses a KV block. Nothing here needs a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_engines.manifest import MANIFEST, Manifest, read_manifest, sha256_of
from build_engines.profile_values import DEPLOYMENT_FILE
from build_engines.spec import GpuPrecision
from tandem.errors import SetupError
from tandem.protocol import ROUTER_MODEL

QUANT_ALGOS: Mapping[GpuPrecision, tuple[str | None, ...]] = {
    GpuPrecision.INT4_AWQ: ("W4A16_AWQ",),
    GpuPrecision.W4A8_AWQ: ("W4A8_AWQ",),
    GpuPrecision.INT8_WO: ("W8A16",),
    GpuPrecision.INT8_SQ: (
        "W8A8_SQ_PER_CHANNEL",
        "W8A8_SQ_PER_TENSOR_PLUGIN",
        "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN",
        "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN",
        "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN",
    ),
    GpuPrecision.FP8: ("FP8", "FP8_PER_CHANNEL_PER_TOKEN"),
    GpuPrecision.NVFP4: ("NVFP4",),
    GpuPrecision.FP16: (None,),
}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """``what`` is a fixed name; ``expected`` is what the other side needs."""

    what: str
    found: object
    expected: object
    remedy: str

    @property
    def line(self) -> str:
        return f"{self.what}: the engine has {self.found!r} and {self.expected!r} is needed; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an engine is held against; None leaves that part out. ``model``: parameters and sizes of its config.pbtxt."""

    tensorrt_llm_version: str | None = None
    gpu_sm: int | None = None
    model: Mapping[str, str] | None = None
    router: Mapping[str, str] | None = None
    deployment: Mapping[str, Any] | None = None


def verify_engine(folder: Path, around: Surroundings) -> tuple[Mismatch, ...]:
    """All mismatches. Raises: SetupError when the folder holds no readable engine."""
    config = _read_json(folder / "config.json")
    try:
        build, pretrained = config["build_config"], config["pretrained_config"]
    except KeyError as error:
        raise SetupError(f"{folder / 'config.json'} has no {error.args[0]}; it is no engine folder of TensorRT-LLM") from None
    found = [*_files(folder, pretrained), *_runtime(config, around)]
    if around.model is not None:
        found += _against_model(folder, build, pretrained, around.model)
    if around.router is not None:
        found += _against_router(build, around.router)
    if (folder / MANIFEST).is_file():
        found += _against_manifest(folder, read_manifest(folder), around)
        found += _against_deployment(build, pretrained, read_manifest(folder), around)
    else:
        found.append(Mismatch("manifest", None, MANIFEST, "build it with `tandem engines build --plan`"))
    return tuple(found)


def surroundings_of(repository: Path, name: str) -> Surroundings:
    """What the rendered repository says of the engine model ``name``. Raises: SetupError."""
    deployment_file = repository / DEPLOYMENT_FILE
    deployment = _read_json(deployment_file) if deployment_file.is_file() else None
    version = None if deployment is None else str(deployment["target"]["tensorrt_llm"])
    model, router = (_parameters(repository / each / "config.pbtxt") for each in (name, ROUTER_MODEL))
    return Surroundings(version, None, model, router, deployment)


def _parameters(path: Path) -> dict[str, str]:
    """The parameters of a config.pbtxt and its max_batch_size, read with Triton's own message. Raises: SetupError."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    try:
        config = text_format.Parse(path.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())
    except (OSError, text_format.ParseError) as error:
        raise SetupError(f"{path} cannot be read ({type(error).__name__}); render the repository anew") from error
    parameters = {key: str(value.string_value) for key, value in config.parameters.items()}
    return {**parameters, "max_batch_size": str(config.max_batch_size)}


def _files(folder: Path, pretrained: Mapping[str, Any]) -> Iterator[Mismatch]:
    world_size = pretrained.get("mapping", {}).get("world_size", 1)
    ranks = len(list(folder.glob("rank*.engine")))
    if ranks != world_size:
        yield Mismatch("rank files", ranks, world_size, "build the engine again")


def _runtime(config: Mapping[str, Any], around: Surroundings) -> Iterator[Mismatch]:
    wanted = around.tensorrt_llm_version
    if wanted is not None and config.get("version") != wanted:
        yield Mismatch("tensorrt_llm version", config.get("version"), wanted, "build it in the container that serves it")


def _against_model(
    folder: Path, build: Mapping[str, Any], pretrained: Mapping[str, Any], model: Mapping[str, str]
) -> Iterator[Mismatch]:
    plugins = build.get("plugin_config", {})
    has_paged = bool(plugins.get("use_paged_context_fmha"))
    for key in ("enable_kv_cache_reuse", "enable_chunked_context"):
        if model.get(key) == "true" and not has_paged:
            yield Mismatch("use_paged_context_fmha", has_paged, True, f"or set {key} to false: it would be off without a word")
    if model.get("enable_kv_cache_reuse") == "true" and build.get("gather_context_logits"):
        yield Mismatch("gather_context_logits", True, False, "it switches KV reuse off")
    if str(build.get("kv_cache_type", "")).upper() != "PAGED":
        yield Mismatch("kv_cache_type", build.get("kv_cache_type"), "PAGED", "build with --kv_cache_type paged")
    if build.get("max_batch_size", 0) < int(model["max_batch_size"]):
        yield Mismatch("max_batch_size", build.get("max_batch_size"), int(model["max_batch_size"]), "render with the engine's plan")
    if pretrained.get("logits_dtype") != "float32":
        yield Mismatch("logits_dtype", pretrained.get("logits_dtype"), "float32", "build with --logits_dtype float32")
    world_size = pretrained.get("mapping", {}).get("world_size", 1)
    gpus = model.get("gpu_device_ids", "")
    if gpus and len(gpus.split(",")) != world_size:
        yield Mismatch("world_size", world_size, len(gpus.split(",")), "gpu_device_ids must list one GPU per rank")
    info = model.get("xgrammar_tokenizer_info_path")
    if ("guided_decoding_backend" in model) != (info is not None):
        yield Mismatch("guided decoding", sorted(model), "both parameters or none", "render the repository anew")
    if info is not None and Path(info).parent == folder and not Path(info).is_file():
        yield Mismatch("tokenizer info for guided decoding", None, info, "run generate_xgrammar_tokenizer_info.py (see the plan)")


def _against_router(build: Mapping[str, Any], router: Mapping[str, str]) -> Iterator[Mismatch]:
    checks: tuple[tuple[str, object, str, Callable[[int, int], bool]], ...] = (
        (
            "tokens_per_block",
            build.get("plugin_config", {}).get("tokens_per_block"),
            "tokens_per_block",
            lambda has, needs: has == needs,
        ),
        ("max_seq_len", build.get("max_seq_len"), "max_seq_len", lambda has, needs: has >= needs),
        ("max_batch_size", build.get("max_batch_size"), "max_in_flight", lambda has, needs: has >= needs),
    )
    for what, has, key, holds in checks:
        needs = int(router[key])
        if not isinstance(has, int) or not holds(has, needs):
            yield Mismatch(f"{what} (router: {key})", has, needs, "render with the plan that the engine was built from")


def _against_manifest(folder: Path, manifest: Manifest, around: Surroundings) -> Iterator[Mismatch]:
    for name, record in manifest.files.items():
        path = folder / name
        if not path.is_file():
            yield Mismatch(f"file {name}", None, record.sha256, "build the engine again")
        elif path.stat().st_size != record.size_bytes or sha256_of(path) != record.sha256:
            yield Mismatch(f"file {name}", "other content", record.sha256, "it was changed after the build; build the engine again")
    built_on = manifest.gpu.get("sm") if manifest.gpu else None
    if around.gpu_sm is not None and built_on != around.gpu_sm:
        yield Mismatch("GPU architecture (SM)", built_on, around.gpu_sm, "build it on the GPU that serves it")


def _against_deployment(
    build: Mapping[str, Any], pretrained: Mapping[str, Any], manifest: Manifest, around: Surroundings
) -> Iterator[Mismatch]:
    if around.deployment is None:
        return
    if manifest.image != around.deployment["image"]:
        yield Mismatch("image", manifest.image, around.deployment["image"], "build in the image that serves")
    spec = around.deployment["engines"].get(manifest.engine)
    if spec is None:
        yield Mismatch("engine name", manifest.engine, sorted(around.deployment["engines"]), "render with the plan of this engine")
        return
    if build.get("max_draft_len", 0) < spec["max_draft_len"]:
        yield Mismatch("max_draft_len", build.get("max_draft_len", 0), spec["max_draft_len"], "it would refuse every longer draft")
    algo = pretrained.get("quantization", {}).get("quant_algo")
    wanted = QUANT_ALGOS[GpuPrecision(spec["precision"])]
    if algo not in wanted:
        yield Mismatch("quantization", algo, wanted[0], "build from the checkpoint of the plan")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SetupError(f"{path} cannot be read ({type(error).__name__})") from error
    if not isinstance(content, dict):
        raise SetupError(f"{path} is no JSON object")
    return content
