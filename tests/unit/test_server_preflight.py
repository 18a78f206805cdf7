"""What is checked before tritonserver starts: each fault one sentence with its remedy."""

from __future__ import annotations

import os
import socket
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from tandem.errors import SetupError
from tandem.server import libpython, logfile, preflight, pytriton_files, stubs


def sentence(caught) -> str:
    assert "\n" not in caught.value.message
    return caught.value.message


def test_port_when_taken_then_port_and_option_are_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SetupError) as caught:
            preflight.check_ports("127.0.0.1", {"--triton-grpc-port": port})
    assert str(port) in sentence(caught)
    assert "--triton-grpc-port" in sentence(caught)
    preflight.check_ports("127.0.0.1", {"--triton-grpc-port": port})


def test_ports_when_equal_then_both_options_are_named():
    with pytest.raises(SetupError) as caught:
        preflight.check_ports("127.0.0.1", {"--a": 18765, "--b": 18765})
    assert "--a and --b" in sentence(caught)


@pytest.mark.parametrize(("free", "total", "word"), [(10, 24, "too small"), (10, 1024, "full")])
def test_shared_memory_when_short_then_said(monkeypatch, free, total, word):
    status = SimpleNamespace(f_bavail=free, f_blocks=total, f_frsize=2**20)
    monkeypatch.setattr(os, "statvfs", lambda _: status)
    with pytest.raises(SetupError) as caught:
        preflight.check_shared_memory()
    assert word in sentence(caught)
    assert "--shm-size" in sentence(caught)


def test_shared_memory_when_missing_then_said(tmp_path):
    with pytest.raises(SetupError, match="does not exist"):
        preflight.check_shared_memory(tmp_path / "none")


def test_regions_when_their_launcher_is_dead_then_removed(tmp_path):
    ours, dead, foreign = (tmp_path / name for name in (f"tandem_{os.getpid()}_ab_1", "tandem_4194399_ab_1", "other_4194399_x"))
    for path in (ours, dead, foreign):
        path.touch()
    preflight.remove_stale_regions("tandem_", tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted((ours, foreign))


def test_libpython_when_missing_then_the_debian_package_is_named(monkeypatch):
    def not_found(name):
        raise OSError(name)

    monkeypatch.setattr(libpython.ctypes, "CDLL", not_found)
    with pytest.raises(SetupError) as caught:
        libpython.find_library_folder(candidates=())
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"apt-get install libpython{version}" in sentence(caught)


def test_libpython_when_beside_the_interpreter_then_that_one(tmp_path):
    (tmp_path / libpython.library_name()).touch()
    assert libpython.find_library_folder((tmp_path / "none", tmp_path)) == tmp_path


def test_package_when_missing_then_how_to_install_it(monkeypatch):
    real = metadata.distribution

    def distribution(name):
        if name == "nvidia-pytriton":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(pytriton_files.metadata, "distribution", distribution)
    with pytest.raises(SetupError, match="pip install --no-deps nvidia-pytriton"):
        pytriton_files.find_triton_files()


def test_numpy_when_2_then_refused(monkeypatch):
    monkeypatch.setattr(pytriton_files.metadata, "version", lambda _: "2.1.0")
    with pytest.raises(SetupError, match=r"numpy 2.1.0.*numpy>=1.26,<2"):
        pytriton_files.find_triton_files()


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "aarch64")])
def test_platform_when_another_then_said(monkeypatch, system, machine):
    monkeypatch.setattr(pytriton_files.sys, "platform", system)
    monkeypatch.setattr(pytriton_files.platform, "machine", lambda: machine)
    with pytest.raises(SetupError, match=machine):
        pytriton_files.find_triton_files()


def test_python3_when_not_beside_the_interpreter_then_said(monkeypatch, tmp_path):
    monkeypatch.setattr(pytriton_files.metadata, "version", lambda _: "1.26.4")
    monkeypatch.setattr(pytriton_files.sys, "executable", str(tmp_path / "python3.11"))
    with pytest.raises(SetupError, match="no python3 beside"):
        pytriton_files.find_triton_files()


def make_package(folder: Path) -> SimpleNamespace:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    root = folder / "pytriton" / "tritonserver"
    for name in (
        "bin/tritonserver",
        f"python_backend_stubs/{version}/triton_python_backend_stub",
        "backends/python/libtriton_python.so",
        "backends/python/triton_python_backend_utils.py",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (folder / "nvidia_pytriton.libs").mkdir()
    return SimpleNamespace(locate_file=lambda name: folder / name)


def test_package_when_incomplete_then_the_file_is_named(monkeypatch, tmp_path):
    package = make_package(tmp_path)
    (tmp_path / "pytriton/tritonserver/bin/tritonserver").unlink()
    monkeypatch.setattr(pytriton_files.metadata, "distribution", lambda _: package)
    monkeypatch.setattr(pytriton_files.metadata, "version", lambda _: "1.26.4")
    with pytest.raises(SetupError, match=r"bin/tritonserver is missing"):
        pytriton_files.find_triton_files()


def test_backend_folder_when_made_twice_then_links_point_at_the_files_and_our_package(monkeypatch, tmp_path):
    package = make_package(tmp_path / "site")
    monkeypatch.setattr(pytriton_files.metadata, "distribution", lambda _: package)
    monkeypatch.setattr(pytriton_files.metadata, "version", lambda _: "1.26.4")
    files = pytriton_files.find_triton_files()
    for _ in range(2):
        folder = pytriton_files.make_backend_folder(files, tmp_path / "backends")
    names = {path.name: path.resolve() for path in (folder / "python").iterdir()}
    assert set(names) == {"libtriton_python.so", "triton_python_backend_utils.py", "triton_python_backend_stub", "tandem"}
    assert (names["tandem"] / "protocol.py").is_file()
    assert names["triton_python_backend_stub"] == files.stub


def test_log_when_rotated_then_the_last_few_are_kept(tmp_path):
    path = tmp_path / "logs" / "x.log"
    for number in range(5):
        logfile.rotate(path, num_kept=2)
        path.write_text(str(number))
    assert {file.name: file.read_text() for file in path.parent.iterdir()} == {"x.log": "4", "x.log.1": "3", "x.log.2": "2"}


def test_log_when_a_model_did_not_load_then_the_reason_without_frames(tmp_path):
    path = tmp_path / "x.log"
    path.write_text(
        'E1130 1 backend_model.cc:692] "ERROR: Failed to create instance: model slow: no such folder.\\n\\nAt:\\n  /a/b.py(1)"\n'
        "| table | row |\n"
        "error: creating server: Internal - failed to load all models\n"
    )
    assert logfile.load_errors(path) == ["model slow: no such folder.", "Internal - failed to load all models"]
    assert "table" not in logfile.tail(path)
    assert logfile.tail(tmp_path / "none") == ""


def test_log_when_models_are_loaded_then_their_names_in_order(tmp_path):
    path = tmp_path / "x.log"
    path.write_text("model_lifecycle.cc:839] \"successfully loaded 'router'\"\nx\n\"successfully loaded 'slow'\"\n")
    assert logfile.loaded_models(path) == ["router", "slow"]
    assert logfile.loaded_models(tmp_path / "none") == []


def test_stubs_when_looking_at_ourselves_then_none_and_running():
    assert stubs.find_stubs(os.getpid()) == frozenset()
    assert stubs.is_running(os.getpid())
    assert not stubs.is_running(4194399)
    assert stubs.living(frozenset({stubs.Stub(os.getpid(), "slow_0_0"), stubs.Stub(4194399, "slow_0_0")})) == frozenset()
