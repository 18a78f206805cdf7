"""The renderer, and the committed repository held against the protocol with Triton's own configuration message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from build_engines.render import PROFILES_DIR, load_profile, main, render, render_files
from tandem.errors import SetupError
from tandem.protocol import ENGINE, ENGINE_CONTRACT_INPUTS, ENGINE_CONTRACT_OUTPUTS, ENGINE_MODELS, MODELS, TANDEM, TensorSpec

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = ROOT / "model_repository"
CONTRACT = ROOT.parent / "shared" / "trtllm_contract.json"
FILLED = {
    "${encoder_input_features_data_type}": "TYPE_FP16",
    "${logits_datatype}": "TYPE_FP32",
    "${prompt_embedding_table_data_type}": "TYPE_FP16",
}


def parsed(name: str) -> model_config_pb2.ModelConfig:
    return text_format.Parse((REPOSITORY / name / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def write_profile(folder: Path, change) -> Path:
    """The cpu profile with one change, as a file of its own."""
    data = yaml.safe_load((PROFILES_DIR / "cpu.yaml").read_text())
    change(data)
    path = folder / "changed.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


def test_repository_when_rendered_anew_then_equals_the_committed_one(tmp_path):
    written = render("cpu", tmp_path)
    committed = {
        path.relative_to(REPOSITORY) for path in REPOSITORY.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }
    assert {path.relative_to(tmp_path) for path in written} == committed
    for path in committed:
        assert (REPOSITORY / path).read_text() == (tmp_path / path).read_text(), f"{path}: run `python -m build_engines.render`"


@pytest.mark.parametrize("name", MODELS)
def test_config_when_parsed_by_triton_then_has_the_tensors_of_the_protocol(name):
    config = parsed(name)
    assert config.name == name
    for given, expected in ((config.input, MODELS[name].inputs), (config.output, MODELS[name].outputs)):
        assert [_spec(tensor) for tensor in given] == [
            (t.name, t.dtype.pbtxt, t.dims, t.optional and given is config.input, t.reshape, t.ragged) for t in expected
        ]


def _spec(tensor):
    is_input = isinstance(tensor, model_config_pb2.ModelInput)
    return (
        tensor.name,
        model_config_pb2.DataType.Name(tensor.data_type),
        tuple(tensor.dims),
        tensor.optional if is_input else False,
        tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None,
        tensor.allow_ragged_batch if is_input else False,
    )


@pytest.mark.parametrize("name", ENGINE_MODELS)
def test_engine_config_when_parsed_then_as_tensorrt_llm_wants_it(name):
    config = parsed(name)
    assert config.backend == "python"
    assert config.model_transaction_policy.decoupled
    assert config.max_batch_size >= 1
    assert list(config.dynamic_batching.preferred_batch_size) == [config.max_batch_size]
    assert config.parameters["gpt_model_path"].string_value == f"engines/{name}/current"
    assert config.instance_group[0].kind == model_config_pb2.ModelInstanceGroup.KIND_CPU


def test_ensemble_when_parsed_then_steps_are_wired_by_name():
    steps = parsed("tandem").ensemble_scheduling.step
    assert [step.model_name for step in steps] == ["preprocessing", "router"]
    for step in steps:
        spec = MODELS[step.model_name]
        assert dict(step.input_map) == {t.name: t.name for t in spec.inputs}
        assert dict(step.output_map) == {t.name: t.name for t in spec.outputs}


def test_ensemble_when_inputs_and_outputs_are_compared_then_no_name_is_both():
    """Triton 2.51 refuses to load such an ensemble: "step receives inputs originated from different decoupled models"."""
    assert not {t.name for t in TANDEM.inputs} & {t.name for t in TANDEM.outputs}


def test_models_when_served_then_model_py_is_thin():
    for path in REPOSITORY.glob("*/1/model.py"):
        assert len(path.read_text().splitlines()) < 80
        compile(path.read_text(), str(path), "exec")


@pytest.mark.skipif(not CONTRACT.is_file(), reason="the reference list trtllm_contract.json is not part of this checkout")
def test_protocol_when_compared_with_the_contract_then_equal():
    contract = json.loads(CONTRACT.read_text())["models"]["tensorrt_llm"]
    for given, ours, is_input in (
        (contract["inputs"], ENGINE_CONTRACT_INPUTS, True),
        (contract["outputs"], ENGINE_CONTRACT_OUTPUTS, False),
    ):
        assert [_contract_row(row, is_input) for row in given] == [_our_row(spec, is_input) for spec in ours]


def _contract_row(row, is_input):
    dtype = FILLED.get(row["data_type"], row["data_type"])
    if not is_input:
        return (row["name"], dtype, tuple(row["dims"]))
    reshape = None if row["reshape"] is None else tuple(row["reshape"])
    return (row["name"], dtype, tuple(row["dims"]), row["optional"], reshape, row["allow_ragged_batch"])


def _our_row(spec: TensorSpec, is_input):
    row = (spec.name, spec.dtype.pbtxt, spec.dims)
    return (*row, spec.optional, spec.reshape, spec.ragged) if is_input else row


def test_extensions_when_declared_then_all_inputs_are_optional():
    assert all(spec.optional for spec in ENGINE.inputs[len(ENGINE_CONTRACT_INPUTS) :])


@pytest.mark.parametrize("value", [None, "", "${engine_dir}", "$engine_dir", "engines/${name}/current"])
def test_value_when_not_filled_then_named(tmp_path, value):
    def change(data):
        data["models"]["slow"]["parameters"]["gpt_model_path"] = value

    with pytest.raises(SetupError) as caught:
        render(write_profile(tmp_path, change), tmp_path / "out")
    assert all(word in caught.value.message for word in ("changed.yaml", "slow.parameters.gpt_model_path", "not filled"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["models"].pop("slow"), ["missing", "slow"]),
        (lambda d: d["models"].update(extra={}), ["unknown", "extra"]),
        (lambda d: d.update(max_batch_size=0), ["max_batch_size", "0"]),
        (lambda d: d["models"]["slow"].update(instance_cuont=2), ["slow", "instance_cuont"]),
        (lambda d: d["models"]["slow"].update(instance_count="two"), ["instance_count", "two"]),
        (lambda d: d["models"]["slow"].update(decoupled="yes"), ["decoupled", "yes"]),
        (lambda d: d["models"]["slow"].update(entry="tandem.triton"), ["entry", "package.module:Class"]),
        (lambda d: d["models"]["slow"]["dynamic_batching"].pop("max_queue_size"), ["max_queue_size"]),
        (lambda d: d["models"]["tandem"]["ensemble"].update(steps=["router"]), ["router", "input_ids"]),
        (lambda d: d["models"]["tandem"]["ensemble"].update(steps=["preprocessing"]), ["outputs", "text_output"]),
        (lambda d: d["models"]["tandem"]["ensemble"].update(steps=["other"]), ["other"]),
    ],
)
def test_profile_when_wrong_then_one_sentence(tmp_path, change, words):
    with pytest.raises(SetupError) as caught:
        render_files(load_profile(write_profile(tmp_path, change)))
    assert all(word in caught.value.message for word in words), caught.value.message
    assert "\n" not in caught.value.message


def test_command_when_the_profile_is_unknown_then_exit_code_2_and_the_known_ones(tmp_path, capsys):
    assert main(["nothing", str(tmp_path)]) == 2
    assert "cpu" in capsys.readouterr().err
    assert main(["cpu", str(tmp_path)]) == 0


def test_text_when_it_holds_quotes_then_escaped(tmp_path):
    def change(data):
        data["models"]["router"]["parameters"]["rules_file"] = 'a"b\\c'

    text = render_files(load_profile(write_profile(tmp_path, change)))["router/config.pbtxt"]
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    assert config.parameters["rules_file"].string_value == 'a"b\\c'
