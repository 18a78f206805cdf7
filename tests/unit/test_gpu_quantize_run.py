"""Real runs of modelopt on a tiny model, on a CPU. They need requirements/gpu-build.lock; docs/gpu.md names the command."""

from __future__ import annotations

import json

import pytest

from build_engines.checkpoint import check_checkpoint
from build_engines.quantize import Export, QuantizeJob, quantize
from build_engines.spec import Calibration, GpuPrecision
from tests.tiny_checkpoint import write_hf_folder

pytest.importorskip("modelopt", reason="nvidia-modelopt is not installed (extra gpu-build)")
pytestmark = pytest.mark.filterwarnings("ignore")  # modelopt's and torch's own

P = GpuPrecision
ALGORITHMS = {P.INT4_AWQ: "W4A16_AWQ", P.INT8_WO: "W8A16", P.INT8_SQ: "W8A8_SQ_PER_CHANNEL", P.FP8: "FP8"}


@pytest.mark.parametrize(
    ("precision", "export"),
    [
        (P.INT4_AWQ, Export.TRTLLM),
        (P.INT8_SQ, Export.TRTLLM),
        (P.INT8_WO, Export.TRTLLM),
        (P.INT4_AWQ, Export.HF),
        (P.FP8, Export.HF),
    ],
)
def test_quantize_when_run_then_the_export_is_whole_and_fits_the_model(tmp_path, precision, export):
    model = tmp_path / "model"
    sizes = {"hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 4, "head_dim": 64}
    write_hf_folder(model, architectures=["LlamaForCausalLM"], **sizes)
    job = QuantizeJob(
        model, tmp_path / "out", precision, export, group_size=64, calibration=Calibration.CODE, calibration_samples=4
    )
    folder = quantize(job)
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= names
    if export is Export.TRTLLM:
        config = json.loads((folder / "config.json").read_text())
        assert config["head_size"] == 64  # the exporter guesses hidden size / heads = 32
        assert config["quantization"]["quant_algo"] == ALGORITHMS[precision]
        assert check_checkpoint(folder, model) == ()
    else:
        quantization = json.loads((folder / "hf_quant_config.json").read_text())["quantization"]
        assert quantization["quant_algo"] == ALGORITHMS[precision]
        assert "model.safetensors" in names
    assert not list(tmp_path.glob(".quantizing-*"))
