"""Quantization before and after modelopt: what is refused beforehand, what an export must be. The run: test_gpu_quantize_run."""

from __future__ import annotations

import copy
import json
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from build_engines.calibration import calibration_texts
from build_engines.checkpoint import check_checkpoint, patch_checkpoint
from build_engines.quantize import Export, QuantizeJob, check_job, main, with_group_size
from build_engines.spec import Calibration, GpuPrecision
from tandem.errors import SetupError
from tandem_cli.main import main as tandem
from tests.tiny_checkpoint import write_hf_folder

SMOLLM2 = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3}


def write_config(folder, **changes):
    """Only the config: a refusal must come before anybody reads weights."""
    folder.mkdir()
    base = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 300,
        "num_hidden_layers": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0,
    }
    (folder / "config.json").write_text(json.dumps({**base, **SMOLLM2, **changes}))
    return folder


def job(tmp_path, group_size, **changes) -> QuantizeJob:
    values = {"precision": GpuPrecision.INT4_AWQ, "export": Export.HF, "group_size": group_size}
    model = tmp_path / "model"
    return QuantizeJob(model if model.exists() else write_config(model), tmp_path / "out", **{**values, **changes})


@pytest.mark.parametrize("group_size", [128, 0, -1, 7])
def test_group_size_when_it_fits_no_row_then_refused_before_torch_with_layers_and_sizes(tmp_path, group_size, capsys, monkeypatch):
    """BC-27 (a)."""
    monkeypatch.setitem(sys.modules, "torch", None)  # an import would end with another message
    write_config(tmp_path / "model")
    options = ["--model_dir", str(tmp_path / "model"), "--output_dir", str(tmp_path / "out"), "--precision", "int4_awq"]
    assert main([*options, "--export", "hf", "--group_size", str(group_size)]) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in ("group_size", str(group_size), "o_proj (576)")), said
    assert not (tmp_path / "out").exists()


def test_command_when_the_group_size_is_wrong_then_one_sentence_and_exit_code_2(tmp_path, capsys):
    write_config(tmp_path / "model")
    options = ["--model_dir", str(tmp_path / "model"), "--output_dir", str(tmp_path / "out"), "--precision", "int4_awq"]
    assert tandem(["engines", "quantize", *options, "--export", "trtllm"]) == 2
    assert "o_proj (576)" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("group_size", [64, 192, 32])
def test_group_size_when_it_divides_every_row_then_accepted(tmp_path, group_size):
    assert check_job(job(tmp_path, group_size)).hidden_size == 576


def test_group_size_when_tensor_parallel_cuts_the_rows_then_counted_per_rank(tmp_path):
    with pytest.raises(SetupError, match=r"o_proj \(288\)"):
        check_job(job(tmp_path, 64, tp=2))


def test_group_size_when_the_precision_has_none_then_not_looked_at(tmp_path):
    check_job(job(tmp_path, 7, precision=GpuPrecision.INT8_SQ))


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"precision": GpuPrecision.FP16}, "nothing to quantize"), ({"calibration_samples": 0}, "calibration_samples")],
)
def test_job_when_senseless_then_named(tmp_path, changes, word):
    with pytest.raises(SetupError, match=word):
        check_job(job(tmp_path, 64, **changes))


def test_job_when_the_output_is_there_then_refused(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(SetupError, match="there already"):
        check_job(job(tmp_path, 64))


def test_quantize_when_torch_is_not_installed_then_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "modelopt.torch.quantization", None)
    write_config(tmp_path / "model")
    options = ["--model_dir", str(tmp_path / "model"), "--output_dir", str(tmp_path / "out"), "--precision", "int4_awq"]
    assert main([*options, "--export", "hf", "--group_size", "64"]) == 2
    assert "gpu-build.lock" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


OLD_PRESET = {"quant_cfg": {"*weight_quantizer": {"num_bits": 4, "block_sizes": {-1: 128}}, "*input_quantizer": {"enable": False}}}
NEW_PRESET = {
    "quant_cfg": [
        {"quantizer_name": "*", "enable": False},
        {"quantizer_name": "*weight_quantizer", "cfg": {"num_bits": 4, "block_sizes": {-1: 128, "type": "static"}}},
    ]
}
W4A8_PRESET = {
    "quant_cfg": [{"quantizer_name": "*weight_quantizer", "cfg": [{"num_bits": 4, "block_sizes": {-1: 128}}, {"num_bits": [4, 3]}]}]
}


@pytest.mark.parametrize("preset", [OLD_PRESET, NEW_PRESET, W4A8_PRESET])
def test_preset_when_of_any_form_then_gets_the_group_size(tmp_path, preset):
    changed = with_group_size(copy.deepcopy(preset), job(tmp_path, 64))
    assert '"-1": 64' in json.dumps(changed)
    assert '"-1": 128' not in json.dumps(changed)


def test_preset_when_of_unknown_form_then_refused(tmp_path):
    with pytest.raises(SetupError, match="lock file"):
        with_group_size({"quant_cfg": [{"quantizer_name": "*"}]}, job(tmp_path, 64))


def write_checkpoint(folder, *, head_size=16, rows=8, columns=64, world_size=1):
    """A checkpoint of the tiny model as modelopt writes one without tensorrt_llm: rotary values missing."""
    folder.mkdir()
    config = {
        "architecture": "QWenForCausalLM",
        "hidden_size": 64,
        "head_size": head_size,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "quantization": {"quant_algo": "W8A16"},
        "mapping": {"world_size": world_size, "tp_size": world_size, "pp_size": 1},
    }
    (folder / "config.json").write_text(json.dumps(config))
    weight = np.zeros((rows * 16, columns), np.int8)
    save_file({"transformer.layers.0.attention.qkv.weight": weight}, folder / "rank0.safetensors")
    return folder


def test_checkpoint_when_its_config_is_generic_then_mended_from_the_model(tmp_path):
    write_hf_folder(tmp_path / "model")
    folder = write_checkpoint(tmp_path / "checkpoint", head_size=32)
    assert any("head_size is 32" in sentence for sentence in check_checkpoint(folder, tmp_path / "model"))
    changes = patch_checkpoint(folder, tmp_path / "model")
    assert changes["head_size"] == (32, 16)
    assert changes["rotary_base"] == (None, 1000.0)
    assert changes["architecture"][1] == "LlamaForCausalLM"
    assert check_checkpoint(folder, tmp_path / "model") == ()
    assert patch_checkpoint(folder, tmp_path / "model") == {}


def test_checkpoint_when_its_tensors_are_of_another_model_then_named(tmp_path, capsys):
    write_hf_folder(tmp_path / "model")
    folder = write_checkpoint(tmp_path / "checkpoint", rows=6)
    assert tandem(["engines", "checkpoint", "--model", str(tmp_path / "model"), "--checkpoint", str(folder)]) == 1
    said = capsys.readouterr().out
    assert "mended rotary_base" in said
    assert "qkv.weight holds 6144 weights" in said


def test_checkpoint_when_a_rank_is_missing_or_torn_then_named(tmp_path):
    write_hf_folder(tmp_path / "model")
    folder = write_checkpoint(tmp_path / "checkpoint", world_size=2, rows=4)
    patch_checkpoint(folder, tmp_path / "model")
    assert check_checkpoint(folder, tmp_path / "model") == ("rank1.safetensors of 2 ranks is missing",)
    (folder / "rank0.safetensors").write_bytes(b"torn")
    with pytest.raises(SetupError, match=r"rank0\.safetensors"):
        check_checkpoint(folder, tmp_path / "model")


def test_calibration_when_written_then_a_data_set_per_kind(tmp_path, capsys):
    assert tandem(["engines", "calibration", "--out", str(tmp_path)]) == 0
    for kind in Calibration:
        lines = (tmp_path / kind.value / "train.jsonl").read_text().splitlines()
        assert [json.loads(line)["text"] for line in lines] == list(calibration_texts(kind))
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_calibration_when_of_a_task_then_its_texts_come_first():
    general = calibration_texts(Calibration.GENERAL)
    for kind in (Calibration.CODE, Calibration.EXTRACTION):
        texts = calibration_texts(kind)
        assert len(texts) >= 32
        assert texts[-len(general) :] == general
        assert not set(texts[:12]) & set(general)
