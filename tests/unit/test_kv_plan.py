"""The KV calculator, held against figures made by hand and against what the CPU decoder allocates."""

import json

import pytest

from build_engines.kv_plan import PRESETS, KvDemand, KvPlan, KvShape, plan, read_shape
from tandem.errors import SetupError
from tandem_cli.main import main

SHAPE_70B = KvShape(num_layers=80, num_kv_heads=8, head_size=128)


@pytest.mark.parametrize("profile", ["cpu", "trtllm", "llmapi"])
def test_plan_when_70b_example_then_20_gib(profile):
    """20 GiB, not "about 4.3 GB" as is often said."""
    found = plan(SHAPE_70B, KvDemand(seq_len=4096, concurrency=16), profile)
    assert isinstance(found, KvPlan)
    assert found.total_bytes == 21_474_836_480 == 20 * 2**30
    assert (found.bytes_per_token, found.blocks_per_seq, found.num_blocks) == (327_680, 128, 2048)


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_plan_when_one_byte_per_value_on_gpu_then_half(dtype):
    found = plan(SHAPE_70B, KvDemand(4096, 16, dtype), "trtllm")
    assert isinstance(found, KvPlan)
    assert found.total_bytes == 10_737_418_240
    assert any("FMHA" in note for note in found.notes) == (dtype == "int8")


def test_plan_when_u8_on_cpu_then_scales_are_counted():
    """Key and value blocks [3, 32, 72] per layer: what OpenVINO allocates for SmolLM2-135M."""
    found = plan(PRESETS["smollm2-135m"], KvDemand(32, 1, "int8"), "cpu")
    assert isinstance(found, KvPlan)
    assert found.total_bytes == 30 * 3 * 2 * 32 * 72
    assert found.bytes_per_token == 12_960


def test_plan_when_length_is_no_multiple_then_whole_blocks_are_paid():
    found = plan(SHAPE_70B, KvDemand(seq_len=65, concurrency=3, block_size=64), "trtllm")
    assert isinstance(found, KvPlan)
    assert (found.blocks_per_seq, found.num_blocks) == (2, 6)
    assert found.total_bytes == 6 * 64 * 327_680


def test_plan_when_prefix_is_shared_then_its_whole_blocks_are_held_once():
    found = plan(SHAPE_70B, KvDemand(seq_len=256, concurrency=10, shared_prefix=100), "trtllm")
    assert isinstance(found, KvPlan)
    assert found.num_blocks == 10 * 8 - 9 * 3
    assert found.bytes_without_sharing == 80 * 32 * 327_680
    alike = plan(SHAPE_70B, KvDemand(seq_len=64, concurrency=2, shared_prefix=64), "trtllm")
    assert isinstance(alike, KvPlan)
    assert alike.num_blocks == 3  # the block with the last token is computed by each


@pytest.mark.parametrize(("dtype", "profile"), [("fp8", "cpu"), ("f32", "trtllm"), ("f32", "llmapi")])
def test_plan_when_profile_has_no_such_cache_then_says_why(dtype, profile):
    assert isinstance(plan(SHAPE_70B, KvDemand(64, 1, dtype), profile), str)


def test_plan_when_cpu_then_block_size_is_the_plugins():
    found = plan(SHAPE_70B, KvDemand(64, 1, block_size=64), "cpu")
    assert isinstance(found, KvPlan)
    assert found.block_size == 32
    assert "32 tokens" in found.notes[0]


def test_shape_when_read_from_config_then_defaults_are_those_of_transformers(tmp_path):
    config = {"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 256}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_shape(str(tmp_path)) == KvShape(4, 8, 32)
    config |= {"num_key_value_heads": 2, "head_dim": 64}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": config}))
    assert read_shape(str(tmp_path / "config.json")) == KvShape(4, 2, 64)


@pytest.mark.parametrize(
    "content",
    ["[]", "{", '{"num_hidden_layers": 4}', '{"kv_lora_rank": 512, "num_attention_heads": 8}', '{"num_attention_heads": "8"}'],
)
def test_shape_when_config_is_not_usable_then_refused(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(SetupError):
        read_shape(str(tmp_path))


@pytest.mark.parametrize(
    "changes",
    [{"seq_len": 0}, {"concurrency": 0}, {"block_size": 0}, {"dtype": "int4"}, {"shared_prefix": 65}, {"shared_prefix": -1}],
)
def test_demand_when_out_of_range_then_refused(changes):
    with pytest.raises(SetupError):
        KvDemand(**{"seq_len": 64, "concurrency": 1, **changes})


def test_command_when_asked_for_json_then_every_profile_is_in_it(capsys):
    assert main(["plan", "kv", "--model", "llama-3.1-70b", "--seq", "4096", "--concurrency", "16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {name: each["total_bytes"] for name, each in found["profiles"].items()} == dict.fromkeys(
        ("cpu", "trtllm", "llmapi"), 21_474_836_480
    )


def test_command_when_for_people_then_table_and_reasons(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["plan", "kv", "--model", "llama-3.1-70b", "--seq", "4096", "--concurrency", "16", "--dtype", "fp8"]) == 0
    out = capsys.readouterr().out
    assert "10,737,418,240" in out
    assert "no FP8 KV cache" in " ".join(out.split())
    assert "compaction" in out


def test_command_when_model_is_unknown_then_one_sentence(capsys):
    assert main(["plan", "kv", "--model", "nothing", "--seq", "1", "--concurrency", "1"]) == 2
    assert "llama-3.1-70b" in capsys.readouterr().err
