"""Build one CPU engine: weights in, a folder with an OpenVINO model and its tokenizer out.

    weight source ─► graph (f32) ─► NNCF weight compression ─► model.xml + model.bin, config.json, tokenizer files

INT8: one scale per row. INT4_AWQ: symmetric 4 bit with a scale per group, after activation-aware scaling (AWQ, arXiv 2306.00978)
and scale estimation on the calibration texts of this package; embedding and LM head stay at 8 bit, because 4 there costs a third
of the model's quality. NNCF does the arithmetic; no torch is needed.
"""

from __future__ import annotations

import io
import json
import logging
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from tokenizers import Tokenizer

from build_engines.engine_spec import CpuEngineSpec, Precision
from build_engines.progress import Reporter
from tandem.errors import SetupError
from tandem.models.graph import ATTENTION_MASK, BEAM_IDX, INPUT_IDS, POSITION_IDS, SAMPLE_IDX, build_graph
from tandem.models.weights import WeightSource

BUILDER_VERSION = 1
"""Part of an engine's content hash: raise it when the same input would now give another engine."""

CALIBRATION_FILE = Path(__file__).resolve().parent / "calibration.json"
MAX_CALIBRATION_TOKENS = 128


def build_cpu_engine(source: WeightSource, spec: CpuEngineSpec, folder: Path, reporter: Reporter) -> None:
    """Write model, config and tokenizer into the existing ``folder``. Raises: SetupError; OSError when the disk refuses."""
    spec.check(source.config)
    source.write_tokenizer(folder)
    config = json.dumps(source.config.to_hf(), indent=2) + "\n"
    (folder / "config.json").write_text(config, encoding="utf-8")
    with reporter.stage(f"{spec.name}: reading {source.origin.name}"):
        model = build_graph(source)
    if spec.precision is not Precision.F32:
        with reporter.stage(f"{spec.name}: quantizing to {spec.precision.value}"):
            model = _compress(model, spec, folder / "tokenizer.json")
    with reporter.stage(f"{spec.name}: writing"):
        _save(model, folder)


def describe_build(spec: CpuEngineSpec) -> tuple[tuple[str, ...], ...]:
    """The calls that make the engine, in the form of command lines, for its manifest."""
    calls: list[tuple[str, ...]] = [("tandem.models.graph.build_graph",)]
    if spec.precision is Precision.INT8:
        calls.append(("nncf.compress_weights", "mode=INT8_ASYM"))
    elif spec.precision is Precision.INT4_AWQ:
        options = ("ratio=1.0", "awq=True", "scale_estimation=True")
        calls.append(("nncf.compress_weights", "mode=INT4_SYM", f"group_size={spec.group_size}", *options))
    calls.append(("openvino.save_model", "compress_to_fp16=False"))
    return tuple(calls)


def _compress(model: ov.Model, spec: CpuEngineSpec, tokenizer_file: Path) -> ov.Model:
    import nncf  # heavy: only a build that quantizes pays for it

    nncf.set_log_level(logging.ERROR)
    arguments: dict[str, Any]
    if spec.precision is Precision.INT8:
        arguments = {"mode": nncf.CompressWeightsMode.INT8_ASYM}
    else:
        samples = _calibration_samples(tokenizer_file)
        arguments = {
            "mode": nncf.CompressWeightsMode.INT4_SYM,
            "group_size": spec.group_size,
            "ratio": 1.0,
            "dataset": nncf.Dataset(samples),
            "subset_size": len(samples),
            "awq": True,
            "scale_estimation": True,
        }
    with redirect_stdout(io.StringIO()):  # tables and bars of its own, for people who debug NNCF
        return nncf.compress_weights(model, **arguments)


def _calibration_samples(tokenizer_file: Path) -> list[dict[str, npt.NDArray[Any]]]:
    """The calibration texts as inputs of the stateful graph, one sequence per sample."""
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    texts: list[str] = json.loads(CALIBRATION_FILE.read_text(encoding="utf-8"))
    return [_sample(tokenizer.encode(text).ids[:MAX_CALIBRATION_TOKENS]) for text in texts]


def _sample(token_ids: list[int]) -> dict[str, npt.NDArray[Any]]:
    length = len(token_ids)
    return {
        INPUT_IDS: np.array([token_ids], dtype=np.int64),
        POSITION_IDS: np.arange(length, dtype=np.int64)[None],
        ATTENTION_MASK: np.triu(np.full((1, 1, length, length), -np.inf, dtype=np.float32), 1),
        BEAM_IDX: np.zeros(1, dtype=np.int32),
        SAMPLE_IDX: np.zeros(1, dtype=np.int64),
    }


def _save(model: ov.Model, folder: Path) -> None:
    """Write the model and read it back: OpenVINO does not report a short write, only a model that then cannot be read."""
    path = folder / "model.xml"
    try:
        ov.save_model(model, path, compress_to_fp16=False)
        ov.Core().read_model(path)
    except RuntimeError as error:
        raise SetupError(f"{folder}: the engine could not be written completely ({error}); check the disk") from error
