"""Building and verifying GPU engines where no GPU is: order of steps, what stops them, manifests, every mismatch by name."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from build_engines.commands import Paths
from build_engines.gpu_build import FoundGpu, Machine, build, check_machine, content_hash, parse_nvidia_smi, probe
from build_engines.gpu_plan import make_plan, read_plan, to_json
from build_engines.manifest import read_manifest
from build_engines.profile_values import profile_values, write_deployment
from build_engines.progress import LineReporter
from build_engines.render import render
from build_engines.spec import PRESETS_DIR, parse_deployment
from build_engines.verify import Surroundings, surroundings_of, verify_engine
from tandem.errors import SetupError
from tandem_cli.main import main
from tests.tiny_checkpoint import write_tokenizer

IMAGE = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3@sha256:" + "0123456789abcdef" * 4
H100 = FoundGpu("NVIDIA H100 80GB HBM3", 90, 79.6, "590.44.01")
MACHINE = Machine((H100,), True, 10**13, {"python": "3.12.3", "tensorrt_llm": "1.2.1", "tensorrt": "10.14.1.48"})


@pytest.fixture
def plan(tmp_path):
    """The plan of the H100 preset with all folders under tmp_path, and the model folders it names."""
    data = yaml.safe_load((PRESETS_DIR / "h100.yaml").read_text())
    paths = Paths(models=str(tmp_path / "models"), work=str(tmp_path / "engines"), calibration=str(tmp_path / "calibration"))
    file = tmp_path / "plan.json"
    file.write_text(to_json(make_plan(parse_deployment(data, "mine", "mine.yaml"), paths, str(file))))
    for name in ("Qwen2.5-7B-Instruct", "Qwen2.5-32B-Instruct"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "model.safetensors").write_bytes(name.encode())
        write_tokenizer(tmp_path / "models" / name)
    return read_plan(file)


class Builder:
    """Plays the programs of a plan: trtllm-build leaves an engine folder, generate_xgrammar_tokenizer_info its file."""

    def __init__(self, fail_at=None) -> None:
        self.ran: list[tuple[str, ...]] = []
        self.environments: list[dict[str, str]] = []
        self._fail_at = fail_at

    def __call__(self, argv, env) -> int:
        self.ran.append(tuple(argv))
        self.environments.append(dict(env))
        if self._fail_at is not None and self._fail_at in argv[0] + argv[1]:
            return 3
        options = {word: argv[index + 1] for index, word in enumerate(argv[:-1]) if word.startswith("--")}
        if argv[0] == "trtllm-build":
            write_engine(Path(options["--output_dir"]), options)
        elif "xgrammar" in argv[1]:
            (Path(options["--output_dir"]) / "xgrammar_tokenizer_info.json").write_text("{}")
        return 0

    @property
    def stages(self) -> list[str]:
        return [Path(words[1] if words[0] == "python3" else words[0]).name for words in self.ran]


def write_engine(folder: Path, options: dict[str, str]) -> None:
    """What trtllm-build leaves, in the form of 1.2.1."""
    folder.mkdir(parents=True)
    name = folder.parent.name
    algo = {"fast_int4": "W4A16_AWQ", "fast_int8": "W8A16", "slow": "FP8"}[name]
    config = {
        "version": "1.2.1",
        "pretrained_config": {
            "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
            "logits_dtype": options["--logits_dtype"],
            "quantization": {"quant_algo": algo},
        },
        "build_config": {
            "max_batch_size": int(options["--max_batch_size"]),
            "max_seq_len": int(options["--max_seq_len"]),
            "max_draft_len": int(options.get("--max_draft_len", 0)),
            "kv_cache_type": options["--kv_cache_type"].upper(),
            "gather_context_logits": False,
            "plugin_config": {
                "use_paged_context_fmha": options["--use_paged_context_fmha"] == "enable",
                "tokens_per_block": int(options["--tokens_per_block"]),
            },
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "rank0.engine").write_bytes(b"engine of " + name.encode())


def reporter() -> LineReporter:
    return LineReporter(io.StringIO())


def built(plan) -> dict[str, Path]:
    return {folder.parent.name: folder for folder in build(plan, IMAGE, MACHINE, Builder(), reporter())}


def repository_of(plan, tmp_path) -> Path:
    folder = tmp_path / "repository"
    render("trtllm", folder, profile_values(plan, plan["paths"]))
    write_deployment(folder, plan, IMAGE)
    return folder


def test_build_when_all_is_there_then_steps_run_in_order_and_each_engine_has_a_manifest(plan):
    builder = Builder()
    folders = build(plan, IMAGE, MACHINE, builder, reporter())
    assert builder.stages == [
        "tandem",
        *["quantize.py", "tandem", "trtllm-build", "generate_xgrammar_tokenizer_info.py", "run.py", "tandem"],
        *["convert_checkpoint.py", "tandem", "trtllm-build", "generate_xgrammar_tokenizer_info.py", "run.py", "tandem"],
        *["quantize.py", "tandem", "trtllm-build", "generate_xgrammar_tokenizer_info.py", "run.py", "tandem"],
    ]
    manifest = read_manifest(folders[2])
    assert (manifest.engine, manifest.precision, manifest.image) == ("slow", "fp8", IMAGE)
    assert manifest.gpu == {"name": H100.name, "sm": 90, "driver": H100.driver}
    assert manifest.limits["max_draft_len"] == 4
    assert set(manifest.files) == {"config.json", "rank0.engine", "xgrammar_tokenizer_info.json"}
    assert manifest.commands[2][0] == "trtllm-build"
    assert manifest.calibration["kind"] == "general"
    assert manifest.tools["tensorrt_llm"] == "1.2.1"
    assert manifest.tokenizer_sha256 == read_manifest(folders[0]).tokenizer_sha256 != ""


def test_build_when_called_again_then_nothing_runs_but_what_changed(plan):
    built(plan)
    again = Builder()
    build(plan, IMAGE, MACHINE, again, reporter())
    assert again.stages == ["tandem"]
    changed = {**plan, "engines": {**plan["engines"], "slow": {**plan["engines"]["slow"], "max_batch_size": 16}}}
    assert content_hash(changed, "slow") != content_hash(plan, "slow")
    assert content_hash(changed, "fast_int4") == content_hash(plan, "fast_int4")


def test_build_when_a_step_fails_then_named_with_its_command_and_earlier_engines_stay(plan):
    with pytest.raises(SetupError, match=r"fast_int8: quantize failed with exit code 3: .*convert_checkpoint"):
        build(plan, IMAGE, MACHINE, Builder(fail_at="convert_checkpoint"), reporter())
    again = Builder()
    build(plan, IMAGE, MACHINE, again, reporter())
    assert again.stages.count("quantize.py") == 1  # fast_int4 is not built again


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (replace(MACHINE, gpus=()), ["no NVIDIA GPU", "H100"]),
        (replace(MACHINE, has_trtllm_build=False), ["trtllm-build"]),
        (replace(MACHINE, tools={"tensorrt_llm": "1.4.0"}), ["1.4.0", "1.2.1"]),
        (replace(MACHINE, tools={}), ["None", "1.2.1"]),
        (replace(MACHINE, gpus=(replace(H100, sm=89),)), ["SM 89"]),
        (replace(MACHINE, gpus=(replace(H100, memory_gib=39.0),)), ["39.0"]),
        (replace(MACHINE, free_bytes=10**9), ["GiB are needed"]),
    ],
)
def test_build_when_the_machine_cannot_then_one_sentence_and_nothing_runs(plan, machine, words):
    builder = Builder()
    with pytest.raises(SetupError) as caught:
        build(plan, IMAGE, machine, builder, reporter())
    assert all(word in caught.value.message for word in words), caught.value.message
    assert builder.ran == []


def test_build_when_several_gpus_are_planned_then_as_many_must_be_there(plan):
    with pytest.raises(SetupError, match="1 GPUs are here and the plan needs 2"):
        check_machine({**plan, "num_gpus": 2}, MACHINE)


def test_build_when_of_the_llm_api_then_refused(plan):
    with pytest.raises(SetupError, match="builds no engine"):
        build({**plan, "flow": "llmapi"}, IMAGE, MACHINE, Builder(), reporter())


def test_build_command_when_no_gpu_is_here_then_the_plan_stands_and_one_sentence_says_where_to(plan, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi, no trtllm-build
    assert main(["engines", "build", "--plan", str(tmp_path / "plan.json"), "--image", IMAGE]) == 2
    said = capsys.readouterr().err
    assert "no NVIDIA GPU" in said
    assert "26.07-trtllm-python-py3" in said
    assert main(["engines", "build", "--plan", str(tmp_path / "plan.json")]) == 2
    assert "--image" in capsys.readouterr().err


def test_probe_when_run_anywhere_then_says_what_is_there(tmp_path):
    machine = probe(tmp_path / "not" / "there")
    assert machine.free_bytes > 0
    assert "python" in machine.tools


def test_nvidia_smi_when_parsed_then_gpus_and_nothing_else():
    text = "NVIDIA H100 80GB HBM3, 9.0, 81559, 590.44.01\nFailed to initialize NVML\n"
    assert parse_nvidia_smi(text) == (FoundGpu("NVIDIA H100 80GB HBM3", 90, 81559 / 1024, "590.44.01"),)


# --- verify ------------------------------------------------------------------------------------------------------------------


def test_verify_when_all_fits_then_silent(plan, tmp_path):
    folders, repository = built(plan), repository_of(plan, tmp_path)
    for name, folder in folders.items():
        around = replace(surroundings_of(repository, name), gpu_sm=90)
        assert verify_engine(folder, around) == (), name


def change(folder: Path, *keys_and_value) -> None:
    """Set one value of the engine's config.json."""
    *keys, last, value = keys_and_value
    config = json.loads((folder / "config.json").read_text())
    inner = config
    for key in keys:
        inner = inner[key]
    inner[last] = value
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        (("version", "1.1.0"), "tensorrt_llm version"),
        (("pretrained_config", "mapping", "world_size", 2), "rank files"),
        (("pretrained_config", "mapping", "world_size", 2), "world_size"),
        (("pretrained_config", "logits_dtype", "float16"), "logits_dtype"),
        (("pretrained_config", "quantization", "quant_algo", "W8A16"), "quantization"),
        (("build_config", "max_batch_size", 8), "max_batch_size"),
        (("build_config", "max_batch_size", 8), "max_batch_size (router: max_in_flight)"),
        (("build_config", "max_seq_len", 1024), "max_seq_len (router: max_seq_len)"),
        (("build_config", "max_draft_len", 0), "max_draft_len"),
        (("build_config", "kv_cache_type", "CONTINUOUS"), "kv_cache_type"),
        (("build_config", "gather_context_logits", True), "gather_context_logits"),
        (("build_config", "plugin_config", "use_paged_context_fmha", False), "use_paged_context_fmha"),
        (("build_config", "plugin_config", "tokens_per_block", 64), "tokens_per_block (router: tokens_per_block)"),
        (("build_config", "max_batch_size", 8), "file config.json"),
    ],
)
def test_verify_when_the_engine_differs_then_the_mismatch_is_named_with_a_remedy(plan, tmp_path, keys, what):
    folder, repository = built(plan)["slow"], repository_of(plan, tmp_path)
    change(folder, *keys)
    found = {mismatch.what: mismatch for mismatch in verify_engine(folder, surroundings_of(repository, "slow"))}
    assert what in found
    assert found[what].remedy in found[what].line


def test_verify_when_a_file_was_changed_or_lost_then_named(plan):
    folder = built(plan)["slow"]
    (folder / "rank0.engine").write_bytes(b"other")
    (folder / "xgrammar_tokenizer_info.json").unlink()
    found = {mismatch.what for mismatch in verify_engine(folder, Surroundings())}
    assert found == {"file rank0.engine", "file xgrammar_tokenizer_info.json"}


def test_verify_when_guided_decoding_lacks_its_tokenizer_info_then_named(plan, tmp_path):
    folder, repository = built(plan)["slow"], repository_of(plan, tmp_path)
    (folder / "xgrammar_tokenizer_info.json").unlink()
    assert "tokenizer info for guided decoding" in {m.what for m in verify_engine(folder, surroundings_of(repository, "slow"))}
    half = {key: value for key, value in surroundings_of(repository, "slow").model.items() if key != "xgrammar_tokenizer_info_path"}
    assert "guided decoding" in {m.what for m in verify_engine(folder, Surroundings(model=half))}


def test_verify_when_gpu_or_image_are_others_then_named(plan, tmp_path):
    folder, repository = built(plan)["slow"], repository_of(plan, tmp_path)
    around = surroundings_of(repository, "slow")
    other_image = replace(around, gpu_sm=89, deployment={**around.deployment, "image": IMAGE.replace("0123", "3210")})
    assert {m.what for m in verify_engine(folder, other_image)} == {"GPU architecture (SM)", "image"}


def test_verify_when_there_is_no_manifest_then_named(plan):
    folder = built(plan)["slow"]
    (folder / "manifest.json").unlink()
    assert [m.what for m in verify_engine(folder, Surroundings())] == ["manifest"]


def test_verify_command_when_run_then_a_line_per_mismatch_and_exit_code_1(plan, tmp_path, capsys):
    folder, repository = built(plan)["slow"], repository_of(plan, tmp_path)
    assert main(["engines", "verify", "--engine-dir", str(folder), "--repository", str(repository)]) == 0
    assert "fits" in capsys.readouterr().out
    change(folder, "build_config", "max_draft_len", 0)
    assert main(["engines", "verify", "--engine-dir", str(folder), "--repository", str(repository)]) == 1
    assert "max_draft_len: the engine has 0 and 4 is needed" in capsys.readouterr().out


def test_verify_when_the_folder_is_no_engine_then_one_sentence(tmp_path):
    with pytest.raises(SetupError, match=r"config\.json"):
        verify_engine(tmp_path, Surroundings())
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SetupError, match="no engine folder"):
        verify_engine(tmp_path, Surroundings())
