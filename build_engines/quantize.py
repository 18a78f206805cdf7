"""Quantize a Hugging Face folder with nvidia-modelopt, on a GPU or on a CPU: ``python -m build_engines.quantize``.

::

    check (shape, group size, target) ─► load ─► calibrate and quantize ─► export into a fresh folder ─► check the export ─► rename

Two exports: ``hf`` (unified checkpoint for the LLM API) and ``trtllm`` (checkpoint for trtllm-build). Everything that can be
refused is refused before torch is imported, and a folder appears only when it is whole. AWQ: arXiv 2306.00978; SmoothQuant: arXiv
2211.10438.
"""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from build_engines.calibration import calibration_texts
from build_engines.checkpoint import check_checkpoint, patch_checkpoint
from build_engines.model_shape import ModelShape, find_shape
from build_engines.spec import Calibration, GpuPrecision
from tandem.errors import SetupError

_AWQ = (GpuPrecision.INT4_AWQ, GpuPrecision.W4A8_AWQ)
_CONFIG_NAMES = {
    GpuPrecision.INT4_AWQ: "INT4_AWQ_CFG",
    GpuPrecision.INT8_WO: "INT8_WEIGHT_ONLY_CFG",
    GpuPrecision.INT8_SQ: "INT8_SMOOTHQUANT_CFG",
    GpuPrecision.W4A8_AWQ: "W4A8_AWQ_BETA_CFG",
    GpuPrecision.FP8: "FP8_DEFAULT_CFG",
    GpuPrecision.NVFP4: "NVFP4_DEFAULT_CFG",
}
_DECODER_TYPES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen", "qwen3": "qwen"}
PER_CHANNEL = -1
MAX_CALIBRATION_TOKENS = 512


class Export(str, Enum):
    HF = "hf"
    TRTLLM = "trtllm"


@dataclass(frozen=True, slots=True)
class QuantizeJob:
    """``group_size`` counts for AWQ only; -1 gives a whole row one scale, which no exported kernel has, so it is refused."""

    model_dir: Path
    output_dir: Path
    precision: GpuPrecision
    export: Export
    group_size: int = 128
    calibration: Calibration = Calibration.GENERAL
    calibration_samples: int = 32
    tp: int = 1
    device: str = "cpu"


def check_job(job: QuantizeJob) -> ModelShape:
    """All that can be known beforehand. Raises: SetupError naming layers and sizes, or the folder that is in the way."""
    shape = find_shape(str(job.model_dir), "--model_dir")
    if job.precision is GpuPrecision.FP16:
        raise SetupError("--precision fp16: there is nothing to quantize; use the model folder itself")
    if job.export is Export.TRTLLM and shape.family not in _DECODER_TYPES:
        raise SetupError(f"{job.model_dir}: family {shape.family} has no exporter; known are {', '.join(_DECODER_TYPES)}")
    if job.calibration_samples < 1:
        raise SetupError(f"--calibration_samples is {job.calibration_samples}; give at least 1")
    if job.output_dir.exists():
        raise SetupError(f"--output_dir: {job.output_dir} is there already; remove it or name another folder")
    _check_group_size(job, shape)
    return shape


def _check_group_size(job: QuantizeJob, shape: ModelShape) -> None:
    if job.precision not in _AWQ:
        return
    rows = shape.row_sizes(job.tp)
    listed = ", ".join(f"{layer} ({size})" for layer, size in rows.items())
    if job.group_size == PER_CHANNEL:
        raise SetupError(f"--group_size -1: no AWQ kernel has one scale per row; use a common divisor of {listed}, or int8_wo")
    if job.group_size < 1:
        raise SetupError(f"--group_size {job.group_size} is not possible; use a common divisor of {listed}")
    wrong = [f"{layer} ({size})" for layer, size in rows.items() if size % job.group_size]
    if wrong:
        fitting = [group for group in (128, 64, 32, 16) if all(size % group == 0 for size in rows.values())]
        remedy = f"use {fitting[0]}" if fitting else "use int8_wo"
        raise SetupError(f"--group_size {job.group_size} does not divide the rows of {', '.join(wrong)}; {remedy}")


def quantize(job: QuantizeJob) -> Path:
    """The folder ``job.output_dir``, whole. Raises: SetupError; OSError when the disk refuses."""
    shape = check_job(job)
    try:
        import modelopt.torch.quantization as mtq
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise SetupError(
            f"{error.name} is not installed; install requirements/gpu-build.lock into an environment of its own"
        ) from error
    torch.manual_seed(0)
    dtype = torch.float32 if job.device == "cpu" else torch.float16
    model: Any = AutoModelForCausalLM.from_pretrained(job.model_dir, dtype=dtype)
    model = model.to(job.device).eval()
    tokenizer = AutoTokenizer.from_pretrained(job.model_dir)
    batches = _batches(job, tokenizer, torch)

    def calibrate(quantized: Any) -> None:
        with torch.no_grad():
            for batch in batches:
                quantized(batch)

    config = with_group_size(copy.deepcopy(getattr(mtq, _CONFIG_NAMES[job.precision])), job)
    model = mtq.quantize(model, config, calibrate)
    return _export(job, shape, model, tokenizer, torch)


def _batches(job: QuantizeJob, tokenizer: Any, torch: Any) -> list[Any]:
    """Token ids of the first ``calibration_samples`` texts, one sequence each. [1, n]"""
    texts = calibration_texts(job.calibration)[: job.calibration_samples]
    limit = {"truncation": True, "max_length": MAX_CALIBRATION_TOKENS}
    return [torch.tensor([tokenizer(text, **limit)["input_ids"]], device=job.device) for text in texts]


def with_group_size(config: dict[str, Any], job: QuantizeJob) -> dict[str, Any]:
    """The preset with the job's group size.

    ``quant_cfg`` is a mapping by quantizer name up to modelopt 0.43 and a list of entries since; both are understood.
    """
    if job.precision not in _AWQ:
        return config
    entries: Iterable[Any] = config["quant_cfg"].values() if isinstance(config["quant_cfg"], dict) else config["quant_cfg"]
    changed = 0
    for entry in entries:
        for block in _block_sizes(entry):
            block[-1] = job.group_size
            changed += 1
    if not changed:
        raise SetupError(f"modelopt's preset for {job.precision.value} has no block size to set; use the version of the lock file")
    return config


def _block_sizes(entry: Any) -> list[dict[int, int]]:
    """The ``block_sizes`` mappings of INT4 quantizers anywhere in an entry of ``quant_cfg``."""
    if isinstance(entry, list):
        return [block for item in entry for block in _block_sizes(item)]
    if not isinstance(entry, dict):
        return []
    found = [entry["block_sizes"]] if entry.get("num_bits") == 4 and isinstance(entry.get("block_sizes"), dict) else []
    return found + [block for value in entry.values() for block in _block_sizes(value)]


def _export(job: QuantizeJob, shape: ModelShape, model: Any, tokenizer: Any, torch: Any) -> Path:
    job.output_dir.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=".quantizing-", dir=job.output_dir.parent))
    try:
        if job.export is Export.HF:
            from modelopt.torch.export import export_hf_checkpoint

            export_hf_checkpoint(model, dtype=torch.float16, export_dir=building)
        else:
            from modelopt.torch.export import export_tensorrt_llm_checkpoint

            export_tensorrt_llm_checkpoint(
                model, _DECODER_TYPES[shape.family], torch.float16, export_dir=building, inference_tensor_parallel=job.tp
            )
            patch_checkpoint(building, job.model_dir)
            wrong = check_checkpoint(building, job.model_dir)
            if wrong:
                raise SetupError(f"the exported checkpoint does not fit the model: {'; '.join(wrong)}")
        tokenizer.save_pretrained(building)
        building.rename(job.output_dir)
    finally:
        shutil.rmtree(building, ignore_errors=True)  # gone already after the rename
    return job.output_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of one job; names with underscores, as quantize.py of TensorRT-LLM spells them."""
    parser.add_argument("--model_dir", type=Path, required=True, metavar="DIR", help="Hugging Face folder")
    parser.add_argument("--output_dir", type=Path, required=True, metavar="DIR", help="where to; must not be there yet")
    parser.add_argument("--precision", choices=[each.value for each in GpuPrecision], required=True)
    parser.add_argument(
        "--export", choices=[each.value for each in Export], required=True, help="hf: LLM API; trtllm: trtllm-build"
    )
    parser.add_argument("--group_size", type=int, default=128, help="weights that share a scale, AWQ only (default %(default)s)")
    parser.add_argument("--calibration", choices=[each.value for each in Calibration], default=Calibration.GENERAL.value)
    parser.add_argument("--calibration_samples", type=int, default=32, help="texts at most (default %(default)s)")
    parser.add_argument("--tp", type=int, default=1, help="ranks of a trtllm checkpoint (default %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default %(default)s)")


def run(args: argparse.Namespace) -> Path:
    """The job of parsed arguments. Raises: SetupError."""
    job = QuantizeJob(
        model_dir=args.model_dir,
        output_dir=args.output_dir,
        precision=GpuPrecision(args.precision),
        export=Export(args.export),
        group_size=args.group_size,
        calibration=Calibration(args.calibration),
        calibration_samples=args.calibration_samples,
        tp=args.tp,
        device=args.device,
    )
    return quantize(job)


def main(argv: list[str] | None = None) -> int:
    """Command line. Exit code 2 with one sentence when something is wrong beforehand; then no folder was written."""
    parser = argparse.ArgumentParser(
        prog="python -m build_engines.quantize", description="Quantize a Hugging Face folder with modelopt."
    )
    add_arguments(parser)
    try:
        folder = run(parser.parse_args(argv))
    except SetupError as error:
        sys.stderr.write(f"{error.message}\n")
        return 2
    sys.stdout.write(json.dumps({"folder": str(folder), "files": sorted(path.name for path in folder.iterdir())}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
