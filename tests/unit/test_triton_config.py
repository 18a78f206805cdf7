"""Parameters of config.pbtxt to frozen configs, and every way in which one can be wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tandem.capabilities import Capability
from tandem.config import engine_config, preprocessing_config, router_config, tandem_home
from tandem.errors import SetupError

ENGINE = {
    "gpt_model_type": "inflight_fused_batching",
    "gpt_model_path": "engines/slow/current",
    "max_tokens_in_paged_kv_cache": "4096",
    "max_seq_len": "8192",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "engines" / "slow" / "current").mkdir(parents=True)
    return tmp_path


def read(home: Path, **changes: str):
    return engine_config("slow", "1", {**ENGINE, **changes}, home)


def test_engine_when_only_the_needed_is_given_then_defaults(home):
    config = read(home)
    assert config.engine_dir == home / "engines/slow/current"
    assert config.max_tokens_in_paged_kv_cache == 4096
    assert config.num_threads == len(os.sched_getaffinity(0))
    assert (config.kv_cache_dtype, config.exclude_input_in_output) == ("f16", False)
    assert (config.cancellation_check_period_ms, config.stats_check_period_ms) == (100, 100)


def test_engine_when_the_path_is_absolute_then_home_does_not_count(home, tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere")
    assert read(home, gpt_model_path=str(folder)).engine_dir == folder


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("True", True), ("TRUE", True), ("1", True), ("false", False), ("0", False)]
)
def test_flag_when_spelled_as_tensorrt_llm_allows_then_read(home, text, value):
    assert read(home, exclude_input_in_output=text).exclude_input_in_output is value


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("gpt_model_path", "engines/none", "build"),
        ("gpt_model_type", "V1", "inflight_fused_batching"),
        ("max_tokens_in_paged_kv_cache", "0", "at least 1"),
        ("max_tokens_in_paged_kv_cache", "many", "whole number"),
        ("max_tokens_in_paged_kv_cache", "1e5", "whole number"),
        ("batch_scheduler_policy", "guaranteed_no_evict", "max_utilization"),
        ("enable_kv_cache_reuse", "maybe", "false"),
        ("enable_chunked_context", "false", "true"),
        ("normalize_log_probs", "true", "false"),
        ("max_beam_width", "4", "1"),
        ("decoding_mode", "medusa", "auto"),
        ("kv_cache_dtype", "fp8", "u8"),
        ("dynamic_quantization", "sometimes", "true"),
        ("exclude_input_in_output", "maybe", "true or false"),
        ("max_draft_len", "5", "at most 0"),
        ("num_threads", "-1", "at least 0"),
        ("kv_cache_free_gpu_mem_fraction", "0.9", "remove"),
        ("lora_cache_max_adapter_size", "64", "remove"),
        ("guided_decoding_backend", "xgrammar", "remove"),
        ("max_num_sequences", "4", "unknown"),
        ("stats_check_period_ms", "${stats_check_period_ms}", "not filled in"),
        ("stats_check_period_ms", "", "not filled in"),
        ("stats_check_period_ms", "   ", "not filled in"),
    ],
)
def test_parameter_when_wrong_then_model_key_value_and_remedy_are_named(home, key, value, remedy):
    with pytest.raises(SetupError) as caught:
        read(home, **{key: value})
    assert all(word in caught.value.message for word in ("slow", key, value.strip(), remedy)), caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("key", ["gpt_model_path", "max_tokens_in_paged_kv_cache", "max_seq_len"])
def test_parameter_when_missing_then_named(home, key):
    parameters = {name: value for name, value in ENGINE.items() if name != key}
    with pytest.raises(SetupError, match=f"{key} is missing"):
        engine_config("slow", "1", parameters, home)


ROUTER = {
    "engine_dirs": "slow=engines/slow/current, fast_int4=engines/slow/current",
    "engine_capabilities": "slow=token_io+logits,fast_int4=token_io + guided",
    "max_seq_len": "100",
    "rules_file": "built-in",
}


def test_router_when_read_then_engines_keep_their_order(home):
    config = router_config("router", ROUTER, home)
    assert list(config.engine_dirs) == ["slow", "fast_int4"]
    assert config.rules_file is None
    assert router_config("router", {**ROUTER, "rules_file": "r.yaml"}, home).rules_file == home / "r.yaml"


def test_router_when_read_then_each_engine_has_its_capabilities(home):
    found = router_config("router", ROUTER, home).engine_capabilities
    assert found["slow"] == {Capability.TOKEN_IO, Capability.LOGITS}
    assert found["fast_int4"] == {Capability.TOKEN_IO, Capability.GUIDED}


@pytest.mark.parametrize(
    "text",
    ["slow=token_io", "slow", "slow=token_io,slow=token_io", "slow=telepathy,fast_int4=token_io", "slow=,fast_int4=token_io"],
)
def test_router_when_capabilities_are_malformed_then_named(home, text):
    with pytest.raises(SetupError, match="engine_capabilities"):
        router_config("router", {**ROUTER, "engine_capabilities": text}, home)


def test_router_when_capabilities_are_missing_then_named(home):
    with pytest.raises(SetupError, match="engine_capabilities is missing"):
        router_config("router", {key: value for key, value in ROUTER.items() if key != "engine_capabilities"}, home)


@pytest.mark.parametrize("dirs", ["slow", "slow=", "=engines/slow/current", "slow=engines/slow/current,", "slow=x"])
def test_router_when_engine_dirs_are_malformed_then_named(home, dirs):
    with pytest.raises(SetupError, match="engine_dirs"):
        router_config("router", {**ROUTER, "engine_dirs": dirs}, home)


def test_preprocessing_when_read_then_the_folder_must_exist(home):
    assert preprocessing_config("p", {"tokenizer_dir": "engines/slow/current", "max_seq_len": "8"}, home).max_seq_len == 8
    with pytest.raises(SetupError, match="tokenizer_dir"):
        preprocessing_config("p", {"tokenizer_dir": "nothing", "max_seq_len": "8"}, home)


def test_home_when_not_set_then_in_the_cache_folder():
    assert tandem_home({"TANDEM_HOME": "/x/y"}) == Path("/x/y")
    assert tandem_home({}) == tandem_home({"TANDEM_HOME": ""}) == Path.home() / ".cache" / "tandem"
