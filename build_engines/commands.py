"""From a spec to command lines, and nothing else: pure functions, so that every command is tested where no GPU is.

The programs are those of the TensorRT-LLM 1.2.1 container; ``Paths`` says where things lie inside it. What a step needs (GPU, how
long) is an estimate for people, from model size and memory bandwidth, and part of no command.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from build_engines.gpus import Gpu
from build_engines.model_shape import ModelShape
from build_engines.spec import Deployment, EngineSpec, Flow, GpuPrecision, KvDtype, Speculation

TENSORRT_LLM_VERSION = "1.2.1"
TRITON_IMAGE = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"

_CONVERTED = (GpuPrecision.INT8_WO, GpuPrecision.FP16)
"""Precisions without calibration: convert_checkpoint.py makes them from the weights alone."""
_CONVERT_FOLDER = {"qwen2": "qwen", "qwen3": "qwen", "llama": "llama", "mistral": "llama"}
_QUANTIZE_GB_PER_S = 0.4
_BUILD_GB_PER_S = 0.25


@dataclass(frozen=True, slots=True)
class Paths:
    """``models`` holds Hugging Face folders by their base name, ``calibration`` a folder per kind with a ``train`` split of texts.

    ``image`` is the container with its digest; without one ``render`` refuses it.
    """

    models: str = "/models"
    work: str = "/engines"
    calibration: str = "/calibration"
    repository: str = "/repository"
    examples: str = "/app/tensorrt_llm/examples"
    image: str = TRITON_IMAGE

    def model(self, spec: EngineSpec) -> str:
        return f"{self.models}/{spec.model.rstrip('/').rpartition('/')[2]}"

    def checkpoint(self, spec: EngineSpec) -> str:
        return f"{self.work}/{spec.name}/checkpoint"

    def engine(self, spec: EngineSpec) -> str:
        return f"{self.work}/{spec.name}/engine"


@dataclass(frozen=True, slots=True)
class Step:
    """One program run. ``stage``: calibration | quantize | build | guided | smoke | verify | render | serve."""

    stage: str
    engine: str
    argv: tuple[str, ...]
    needs_gpu: bool
    estimated_s: int
    env: tuple[tuple[str, str], ...] = field(default=())

    @property
    def shell(self) -> str:
        return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in self.env), shlex.join(self.argv)])


def commands(deployment: Deployment, paths: Paths, plan_file: str) -> tuple[Step, ...]:
    """All steps in order, from Hugging Face folders to a served repository."""
    steps = [Step("calibration", "", ("tandem", "engines", "calibration", "--out", paths.calibration), False, 1)]
    for spec in deployment.engines:
        steps += engine_commands(spec, deployment, paths)
    steps.append(_render(deployment, paths, plan_file))
    steps.append(_serve(deployment, paths))
    return tuple(steps)


def engine_commands(spec: EngineSpec, deployment: Deployment, paths: Paths) -> Iterator[Step]:
    """The steps that make one engine."""
    shape, gpu = deployment.shape(spec), deployment.gpu
    if deployment.flow is Flow.LLMAPI:
        if spec.precision is not GpuPrecision.FP16:
            yield _export_hf(spec, shape, paths)
        return
    yield _convert(spec, shape, paths) if spec.precision in _CONVERTED else _quantize(spec, shape, paths)
    yield _check_checkpoint(spec, paths)
    yield _build(spec, shape, paths)
    if spec.is_guided:
        yield _tokenizer_info(spec, paths)
    yield _smoke(spec, shape, gpu, paths)
    yield _verify(spec, paths)


def _quantize(spec: EngineSpec, shape: ModelShape, paths: Paths) -> Step:
    argv = [
        "python3",
        f"{paths.examples}/quantization/quantize.py",
        *_flags(
            model_dir=paths.model(spec),
            output_dir=paths.checkpoint(spec),
            dtype="float16",
            qformat=spec.precision.value,
            calib_dataset=f"{paths.calibration}/{spec.calibration.value}",
            calib_size=spec.calibration_samples,
            tp_size=spec.tp,
            pp_size=spec.pp,
        ),
    ]
    if spec.precision in (GpuPrecision.INT4_AWQ, GpuPrecision.W4A8_AWQ):
        argv += _flags(awq_block_size=spec.group_size)
    if spec.kv_dtype is not KvDtype.FP16:
        argv += _flags(kv_cache_dtype=spec.kv_dtype.value)
    return Step("quantize", spec.name, tuple(argv), True, _seconds(shape.num_weights * 2, _QUANTIZE_GB_PER_S), _on(spec))


def _convert(spec: EngineSpec, shape: ModelShape, paths: Paths) -> Step:
    folder = _CONVERT_FOLDER.get(shape.family, shape.family)
    argv = [
        "python3",
        f"{paths.examples}/models/core/{folder}/convert_checkpoint.py",
        *_flags(model_dir=paths.model(spec), output_dir=paths.checkpoint(spec), dtype="float16", tp_size=spec.tp, pp_size=spec.pp),
    ]
    if spec.precision is GpuPrecision.INT8_WO:
        argv += ["--use_weight_only", *_flags(weight_only_precision="int8")]
    if spec.kv_dtype is KvDtype.INT8:
        argv += ["--int8_kv_cache"]
    return Step("quantize", spec.name, tuple(argv), True, _seconds(shape.num_weights * 2, 1.0), _on(spec))


def _check_checkpoint(spec: EngineSpec, paths: Paths) -> Step:
    argv = ("tandem", "engines", "checkpoint", "--model", paths.model(spec), "--checkpoint", paths.checkpoint(spec))
    return Step("verify", spec.name, argv, False, 5)


def _build(spec: EngineSpec, shape: ModelShape, paths: Paths) -> Step:
    argv = [
        "trtllm-build",
        *_flags(
            checkpoint_dir=paths.checkpoint(spec),
            output_dir=paths.engine(spec),
            gemm_plugin="auto",
            gpt_attention_plugin="auto",
            kv_cache_type="paged",
            tokens_per_block=spec.tokens_per_block,
            remove_input_padding="enable",
            context_fmha="enable",
            use_paged_context_fmha="enable" if spec.paged_context_fmha else "disable",
            max_batch_size=spec.max_batch_size,
            max_num_tokens=spec.max_num_tokens,
            max_seq_len=spec.max_seq_len,
            max_beam_width=spec.max_beam_width,
            logits_dtype=spec.logits_dtype,
            workers=spec.world_size,
        ),
    ]
    if spec.speculation is not Speculation.NONE:
        argv += _flags(speculative_decoding_mode=spec.speculation.value, max_draft_len=spec.max_draft_len)
    if spec.gather_context_logits:
        argv += ["--gather_context_logits"]
    return Step("build", spec.name, tuple(argv), True, _seconds(shape.num_weights * 2, _BUILD_GB_PER_S), _on(spec))


def _tokenizer_info(spec: EngineSpec, paths: Paths) -> Step:
    argv = (
        "python3",
        f"{paths.examples}/generate_xgrammar_tokenizer_info.py",
        *_flags(model_dir=paths.model(spec), output_dir=paths.engine(spec)),
    )
    return Step("guided", spec.name, argv, False, 20)


def _smoke(spec: EngineSpec, shape: ModelShape, gpu: Gpu, paths: Paths) -> Step:
    """One short greedy answer; under mpirun when the engine has several ranks."""
    argv = [
        "python3",
        f"{paths.examples}/run.py",
        *_flags(
            engine_dir=paths.engine(spec), tokenizer_dir=paths.model(spec), input_text="The capital of France is", max_output_len=16
        ),
    ]
    if spec.world_size > 1:
        argv = ["mpirun", "-n", str(spec.world_size), "--allow-run-as-root", *argv]
    decode_s = 16 * shape.num_weights * 2 / (gpu.bandwidth_gb_s * 1e9)
    return Step("smoke", spec.name, tuple(argv), True, 60 + int(decode_s), _on(spec))


def _verify(spec: EngineSpec, paths: Paths) -> Step:
    return Step("verify", spec.name, ("tandem", "engines", "verify", "--engine-dir", paths.engine(spec)), False, 30)


def _export_hf(spec: EngineSpec, shape: ModelShape, paths: Paths) -> Step:
    """The unified Hugging Face export for the LLM API, by ``build_engines.quantize``."""
    argv = (
        "python3",
        "-m",
        "build_engines.quantize",
        *_flags(
            model_dir=paths.model(spec),
            output_dir=paths.checkpoint(spec),
            precision=spec.precision.value,
            group_size=spec.group_size,
            calibration=spec.calibration.value,
            calibration_samples=spec.calibration_samples,
            export="hf",
            device="cuda",
        ),
    )
    return Step("quantize", spec.name, argv, True, _seconds(shape.num_weights * 2, _QUANTIZE_GB_PER_S), _on(spec))


def _render(deployment: Deployment, paths: Paths, plan_file: str) -> Step:
    options = _flags(profile=deployment.flow.value, plan=plan_file, image=paths.image, out=paths.repository)
    return Step("render", "", ("tandem", "engines", "render", *options), False, 1)


def _serve(deployment: Deployment, paths: Paths) -> Step:
    """Triton on loopback, with what NVIDIA's launch script sets for several engines in one server.

    That script itself listens on every address and has no option for another, so it is not used. In orchestrator mode
    each engine starts the processes of its ranks itself.
    """
    if deployment.flow is Flow.LLMAPI:
        return Step("serve", "", ("tritonserver", f"--model-repository={paths.repository}", *_SERVER_FLAGS), True, 120)
    pools = tuple(f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(deployment.num_gpus))
    argv = ("mpirun", "--allow-run-as-root", "-n", "1", "tritonserver", f"--model-repository={paths.repository}", *_SERVER_FLAGS)
    env = (("TRTLLM_ORCHESTRATOR", "1"), ("TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES", "1"))
    return Step("serve", "", (*argv, "--pinned-memory-pool-byte-size=0", "--enable-peer-access=false", *pools), True, 120, env)


_SERVER_FLAGS = (
    "--http-address=127.0.0.1",
    "--grpc-address=127.0.0.1",
    "--metrics-address=127.0.0.1",
    "--disable-auto-complete-config",
    "--exit-on-error=true",
)


def _flags(**values: object) -> list[str]:
    """``name=value`` pairs as ``--name value``."""
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def _on(spec: EngineSpec) -> tuple[tuple[str, str], ...]:
    return (("CUDA_VISIBLE_DEVICES", ",".join(map(str, spec.gpus))),)


def _seconds(num_bytes: float, gb_per_s: float) -> int:
    return max(int(num_bytes / 1e9 / gb_per_s), 30)
