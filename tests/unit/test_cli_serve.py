"""How a start is composed: the repository it writes, the set-up errors it tells, the engines it lists."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from build_engines.manifest import FileRecord, Manifest
from build_engines.render import load_profile
from tandem.errors import SetupError
from tandem_cli.main import main
from tandem_cli.repository import engine_set_hash, write_repository
from tandem_cli.serving import ServeOptions


def manifest(name: str, *, max_seq_len: int = 8192, content_hash: str = "abc") -> Manifest:
    return Manifest(
        engine=name,
        precision="int8",
        group_size=64,
        content_hash=content_hash,
        builder_version=1,
        weights="tiny.gguf",
        weights_sha256="0" * 64,
        tokenizer_sha256="1" * 64,
        limits={"max_seq_len": max_seq_len, "vocab_size": 10},
        tools={},
        files={"model.bin": FileRecord(2_000_000, "2" * 64)},
    )


MANIFESTS = {name: manifest(name) for name in ("fast_int4", "fast_int8", "slow")}


def test_repository_when_written_then_has_a_version_folder_and_a_config_for_every_model(tmp_path: Path) -> None:
    write_repository(tmp_path / "r", "cpu", MANIFESTS, threads=0)
    for name in load_profile("cpu").models:
        assert (tmp_path / "r" / name / "1").is_dir()
        assert (tmp_path / "r" / name / "config.pbtxt").is_file()


def test_repository_when_engines_are_short_then_all_models_take_the_shortest_context(tmp_path: Path) -> None:
    write_repository(tmp_path, "cpu", {**MANIFESTS, "slow": manifest("slow", max_seq_len=2048)}, threads=3)
    for name in ("preprocessing", "router", "fast_int4", "slow"):
        config = (tmp_path / name / "config.pbtxt").read_text(encoding="utf-8")
        assert value_of(config, "max_seq_len") == "2048"
        assert ("num_threads" in config) == (name in MANIFESTS)
    assert value_of((tmp_path / "slow" / "config.pbtxt").read_text(encoding="utf-8"), "num_threads") == "3"


def value_of(config: str, key: str) -> str:
    after = config.split(f'key: "{key}"')[1]
    return after.split('string_value: "')[1].split('"')[0]


def test_repository_when_written_again_then_nothing_old_is_left(tmp_path: Path) -> None:
    (tmp_path / "old_model").mkdir()
    write_repository(tmp_path, "cpu", MANIFESTS, threads=0)
    assert not (tmp_path / "old_model").exists()


def test_engine_set_hash_when_one_engine_changes_then_differs() -> None:
    changed = {**MANIFESTS, "slow": manifest("slow", content_hash="def")}
    assert engine_set_hash(MANIFESTS) == engine_set_hash(dict(reversed(MANIFESTS.items())))
    assert engine_set_hash(MANIFESTS) != engine_set_hash(changed)


def test_serve_when_port_is_taken_then_one_sentence_before_any_build(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert main(["serve", "--home", str(tmp_path), "--port", str(port)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("tandem: port: ")
    assert "--port" in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "loopback"),
        (["--port", "0", "--fast-model", "/no/such/model"], "/no/such/model"),
        (["--port", "0", "--threads", "-1"], "--threads"),
        (["--port", "0", "--api-key-file", "/no/such/file"], "--api-key-file"),
    ],
)
def test_serve_when_an_option_is_wrong_then_one_sentence_and_exit_code_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["serve", "--home", str(tmp_path), *arguments]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert "Traceback" not in shown


def test_options_when_threads_are_negative_then_setup_error() -> None:
    with pytest.raises(SetupError, match="--threads"):
        ServeOptions(Path(), None, None, "127.0.0.1", 0, 0, 0, 0, -1, "cpu", None, 1.0)


def test_engines_when_none_is_built_then_list_and_verify_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engines", "list", "--json", "--home", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == {"fast_int4": None, "fast_int8": None, "slow": None}
    assert main(["engines", "list", "--home", str(tmp_path)]) == 0
    assert "not built" in capsys.readouterr().out
    assert main(["engines", "verify", "--home", str(tmp_path)]) == 1
    assert capsys.readouterr().out.count("not built") == 4  # three engines and the encoder


def test_engines_when_rendered_then_repository_of_the_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["engines", "render", "--out", str(tmp_path / "r")]) == 0
    assert (tmp_path / "r" / "tandem" / "config.pbtxt").is_file()
    assert main(["engines", "render", "--profile", "none"]) == 2
    assert "none" in capsys.readouterr().err
