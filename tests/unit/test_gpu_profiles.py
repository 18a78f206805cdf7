"""The profiles for GPUs: complete, parsed by Triton's own configuration message, true to the contract, bound to plan and image."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from build_engines.commands import Paths
from build_engines.gpu_plan import make_plan, read_plan, to_json
from build_engines.profile import PROFILES_DIR, capabilities_of, fill, load_profile
from build_engines.profile_values import DEPLOYMENT_FILE, check_image, profile_values
from build_engines.render import render, render_files
from build_engines.spec import PRESETS_DIR, parse_deployment
from tandem.capabilities import EXTENSION_TENSORS, Capability
from tandem.config import router_config
from tandem.errors import SetupError
from tandem.protocol import ENGINE_CONTRACT_INPUTS, ENGINE_CONTRACT_OUTPUTS, ENGINE_MODELS, MODELS
from tandem_cli.main import main
from tandem_cli.repository import write_repository

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = ROOT.parent / "shared" / "trtllm_contract.json"
IMAGE = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3@sha256:" + "0123456789abcdef" * 4
GPU_PROFILES = ("trtllm", "llmapi")


def plan_of(tmp_path, flow="trtllm", **slow_changes):
    """The plan of the H100 preset as a document, in the given flow."""
    data = yaml.safe_load((PRESETS_DIR / "h100.yaml").read_text())
    data["flow"] = flow
    if flow == "llmapi":
        data["engines"]["fast_int8"]["precision"] = "fp8"
        data["engines"]["slow"].update(speculation="none", max_draft_len=0)
    data["engines"]["slow"].update(slow_changes)
    file = tmp_path / "plan.json"
    file.write_text(to_json(make_plan(parse_deployment(data, "mine", "mine.yaml"), Paths(), str(file))))
    return file


def rendered(tmp_path, flow="trtllm", **slow_changes) -> Path:
    plan = read_plan(plan_of(tmp_path, flow, **slow_changes))
    render(flow, tmp_path / "repository", profile_values(plan, plan["paths"]))
    return tmp_path / "repository"


def config_of(repository, name) -> model_config_pb2.ModelConfig:
    return text_format.Parse((repository / name / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def parameters_of(config) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


@pytest.mark.parametrize("flow", GPU_PROFILES)
def test_profile_when_rendered_with_a_plan_then_complete_and_parsed_by_triton(tmp_path, flow):
    repository = rendered(tmp_path, flow)
    assert {path.name for path in repository.iterdir()} == set(MODELS)
    for name in MODELS:
        config = config_of(repository, name)
        assert config.name == name
        assert (repository / name / "1").is_dir()
        assert "${" not in (repository / name / "config.pbtxt").read_text()


@pytest.mark.parametrize("flow", GPU_PROFILES)
def test_profile_when_rendered_without_a_plan_then_refused_and_nothing_written(tmp_path, flow):
    with pytest.raises(SetupError, match=r"not filled in.*tandem engines plan"):
        render(flow, tmp_path / "repository")
    assert not (tmp_path / "repository").exists()


@pytest.mark.parametrize("profile", ["cpu", *GPU_PROFILES])
def test_engine_when_rendered_then_has_the_contract_and_what_its_capabilities_bring(tmp_path, profile):
    repository = ROOT / "model_repository" if profile == "cpu" else rendered(tmp_path, profile)
    able = parameters_of(config_of(repository, "router"))["engine_capabilities"]
    for name in ENGINE_MODELS:
        has = dict(part.split("=") for part in able.split(","))[name].split("+")
        config = config_of(repository, name)
        inputs, outputs = ({tensor.name for tensor in tensors} for tensors in (config.input, config.output))
        assert {tensor.name for tensor in ENGINE_CONTRACT_INPUTS} <= inputs
        assert {tensor.name for tensor in ENGINE_CONTRACT_OUTPUTS} <= outputs
        for tensor, capability in EXTENSION_TENSORS.items():
            assert (tensor in inputs | outputs) == (capability.value in has), tensor


def test_trtllm_engine_when_rendered_then_the_numbers_are_those_of_the_plan(tmp_path):
    repository = rendered(tmp_path)
    plan = read_plan(tmp_path / "plan.json")
    for rank in plan["memory"]["ranks"]:
        config = config_of(repository, rank["engine"])
        parameters = parameters_of(config)
        assert config.backend == "tensorrtllm"
        assert config.max_batch_size == plan["engines"][rank["engine"]]["max_batch_size"]
        assert parameters["max_tokens_in_paged_kv_cache"] == str(rank["kv_tokens"])
        assert parameters["gpt_model_path"] == f"/engines/{rank['engine']}/engine"
        assert parameters["normalize_log_probs"] == "false"
        assert not list((repository / rank["engine"]).rglob("*.py"))


@pytest.mark.skipif(not CONTRACT.is_file(), reason="the reference list trtllm_contract.json is not part of this checkout")
def test_trtllm_engine_when_compared_with_the_contract_then_knows_every_parameter_and_misses_none_that_must_be_given(tmp_path):
    contract = json.loads(CONTRACT.read_text())
    known = {row["key"] for row in contract["models"]["tensorrt_llm"]["parameters"]}
    config = config_of(rendered(tmp_path), "slow")
    assert set(parameters_of(config)) <= known
    assert {"gpt_model_type", "gpt_model_path"} <= set(parameters_of(config))
    unfilled = set(contract["must_fill_template_vars"])
    assert {
        "triton_backend",
        "triton_max_batch_size",
        "decoupled_mode",
        "logits_datatype",
    } <= unfilled  # all of them are in the config
    assert config.model_transaction_policy.decoupled
    assert {tensor.name: tensor.data_type for tensor in config.output}["generation_logits"] == model_config_pb2.TYPE_FP32


def test_trtllm_engine_when_not_guided_then_both_parameters_are_left_out_and_the_capability_too(tmp_path):
    repository = rendered(tmp_path, guided_backend="none")
    assert not {"guided_decoding_backend", "xgrammar_tokenizer_info_path"} & set(parameters_of(config_of(repository, "slow")))
    both = parameters_of(config_of(repository, "fast_int4"))
    assert {"guided_decoding_backend", "xgrammar_tokenizer_info_path"} <= set(both)
    able = parameters_of(config_of(repository, "router"))["engine_capabilities"]
    assert [("guided" in part) for part in able.split(",")] == [True, True, False]


def test_router_when_rendered_then_reads_back_with_the_capabilities_of_each_engine(tmp_path):
    parameters = parameters_of(config_of(rendered(tmp_path), "router"))
    home = tmp_path / "home"
    for folder in parameters["engine_dirs"].split(","):
        (home / folder.partition("=")[2].lstrip("/")).mkdir(parents=True, exist_ok=True)
    parameters["engine_dirs"] = parameters["engine_dirs"].replace("=/", "=")
    config = router_config("router", parameters, home)
    assert config.engine_profile == "trtllm"
    assert Capability.DRAFT_TOKENS in config.engine_capabilities["slow"]
    assert Capability.DRAFT_TOKENS not in config.engine_capabilities["fast_int4"]
    assert Capability.CACHE_SALT not in config.engine_capabilities["slow"]
    assert Capability.ONE_TENANT in config.engine_capabilities["slow"]
    assert config.max_in_flight == 32


def test_llmapi_engine_when_rendered_then_the_adapter_with_salts_and_no_drafts(tmp_path):
    repository = rendered(tmp_path, "llmapi")
    config = config_of(repository, "slow")
    assert config.backend == "python"
    assert "llmapi_adapter" in (repository / "slow" / "1" / "model.py").read_text()
    assert "cache_salt" in {tensor.name for tensor in config.input}
    able = parameters_of(config_of(repository, "router"))["engine_capabilities"]
    assert "draft_tokens" not in able
    assert "cache_salt" in able


def test_render_command_when_given_plan_and_image_then_writes_the_deployment_too(tmp_path, capsys):
    out = tmp_path / "repository"
    options = ["--plan", str(plan_of(tmp_path)), "--image", IMAGE, "--out", str(out)]
    assert main(["engines", "render", "--profile", "trtllm", *options]) == 0
    document = json.loads((out / DEPLOYMENT_FILE).read_text())
    assert document["image"] == IMAGE
    assert document["target"]["tensorrt_llm"] == "1.2.1"
    assert document["engines"]["slow"]["max_draft_len"] == 4
    assert "trtllm" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3", "digest"),
        ("nvcr.io/nvidia/tritonserver@sha256:" + "0" * 64, "tag"),
        (IMAGE.replace("26.07", "26.08"), "26.08"),
        (IMAGE.replace("26.07", "25.12"), "25.12"),
        (IMAGE[:-1], "digest"),
    ],
)
def test_image_when_not_pinned_or_of_another_release_then_refused(image, words):
    with pytest.raises(SetupError, match=words):
        check_image(image)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--profile", "trtllm"], "not filled in"),
        (["--profile", "trtllm", "--image", IMAGE], "together"),
        (["--profile", "llmapi", "--image", IMAGE, "--plan", "PLAN"], "is for profile trtllm"),
        (["--profile", "trtllm", "--image", "x", "--plan", "PLAN"], "digest"),
        (["--profile", "trtllm", "--image", IMAGE, "--plan", "nowhere"], "cannot be read"),
    ],
)
def test_render_command_when_something_is_missing_then_one_sentence_and_no_folder(tmp_path, capsys, options, words):
    plan = str(plan_of(tmp_path))
    out = tmp_path / "repository"
    assert main(["engines", "render", *(plan if word == "PLAN" else word for word in options), "--out", str(out)]) == 2
    assert words in capsys.readouterr().err
    assert not out.exists()


def test_serve_when_given_a_profile_for_gpus_then_refused_with_the_way_to_go(tmp_path):
    manifest = SimpleNamespace(limits={"max_seq_len": 4096})
    with pytest.raises(SetupError, match="tandem engines plan"):
        write_repository(tmp_path / "repository", "trtllm", {"slow": manifest}, 1)


def test_plan_when_it_lacks_an_engine_then_named(tmp_path):
    plan = dict(read_plan(plan_of(tmp_path)))
    plan["engines"] = {name: spec for name, spec in plan["engines"].items() if name != "slow"}
    with pytest.raises(SetupError, match="no slow"):
        profile_values(plan, plan["paths"])


def changed(tmp_path, change) -> Path:
    data = yaml.safe_load((PROFILES_DIR / "cpu.yaml").read_text())
    change(data)
    path = tmp_path / "changed.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda d: d["models"]["slow"].pop("capabilities"), "missing"),
        (lambda d: d["models"]["slow"]["capabilities"].pop("guided"), "guided"),
        (lambda d: d["models"]["slow"]["capabilities"].update(telepathy=True), "telepathy"),
        (lambda d: d["models"]["slow"]["capabilities"].update(guided="yes"), "true or false"),
        (lambda d: d["models"]["router"].update(capabilities={}), "capabilities"),
        (lambda d: d["models"]["router"]["parameters"].update(engine_capabilities="x"), "engine_capabilities"),
        (lambda d: d["models"]["slow"].update(backend="vllm"), "vllm"),
        (lambda d: d.update(extend="cpu"), "extend"),
    ],
)
def test_profile_when_its_capabilities_or_keys_are_wrong_then_named(tmp_path, change, word):
    with pytest.raises(SetupError, match=word):
        render_files(fill(load_profile(changed(tmp_path, change)), {}))


def test_profile_when_extended_then_engines_are_replaced_and_the_rest_is_merged(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("profile: mine\nextends: cpu\nmodels: {router: {parameters: {max_waiting: 7}}}\n")
    with pytest.raises(SetupError, match="fast_int4"):
        load_profile(path)
    profile = load_profile("trtllm")
    base = load_profile("cpu")
    assert profile.models["router"]["parameters"]["default_max_tokens"] == base.models["router"]["parameters"]["default_max_tokens"]
    assert "kv_cache_dtype" not in profile.models["slow"]["parameters"]
    assert Capability.GUIDED in capabilities_of(base, "slow")
