"""Where the Triton binaries of the installed ``nvidia-pytriton`` package are, and a backend folder of our own made of them.

The package is a carrier only: it is never imported (its own launcher, proxy and dependencies are not used).
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import tandem
from tandem.errors import SetupError

_PACKAGE = "nvidia-pytriton"
_STUB = "triton_python_backend_stub"
_BACKEND_FILES = ("libtriton_python.so", "triton_python_backend_utils.py")


@dataclass(frozen=True, slots=True)
class TritonFiles:
    """``stub`` is the Python backend's process for the running Python; ``backend_files`` lie beside it in a backend folder."""

    server: Path
    libraries: Path
    stub: Path
    backend_files: tuple[Path, ...]


def find_triton_files() -> TritonFiles:
    """Raises: SetupError with the remedy when the package is missing, incomplete or does not fit this machine or Python."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise SetupError(f"Triton's binary runs on Linux x86_64 only; this is {sys.platform} {platform.machine()}.")
    _check_numpy()
    # The stub takes prefix and packages from the first python3 on PATH (see TritonServer), which must be the running Python.
    if not (Path(sys.executable).parent / "python3").exists():
        raise SetupError(f"There is no python3 beside {sys.executable}, which Triton's models need; make a virtual environment.")
    try:
        distribution = metadata.distribution(_PACKAGE)
    except metadata.PackageNotFoundError:
        raise SetupError(f"The package {_PACKAGE} is not installed; run `pip install --no-deps {_PACKAGE}==0.7.0`.") from None
    site_packages = Path(str(distribution.locate_file("")))
    root = site_packages / "pytriton" / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = root / "python_backend_stubs" / version / _STUB
    if not stub.is_file() and root.is_dir():
        raise SetupError(f"{_PACKAGE} has no Python backend for Python {version}; use Python 3.10, 3.11 or 3.12.")
    files = TritonFiles(
        server=root / "bin" / "tritonserver",
        libraries=site_packages / "nvidia_pytriton.libs",
        stub=stub,
        backend_files=tuple(root / "backends" / "python" / name for name in _BACKEND_FILES),
    )
    for path in (files.server, files.libraries, files.stub, *files.backend_files):
        if not path.exists():
            raise SetupError(f"{_PACKAGE} is incomplete ({path} is missing); reinstall it with --force-reinstall --no-deps.")
    return files


def _check_numpy() -> None:
    """The stubs are built with a pybind11 that reads NumPy 1's memory layout. Under NumPy 2 they do not fail: every element of an
    input reads as the first one and outputs arrive empty (measured with 2.4.6 on Triton 2.51)."""
    version = metadata.version("numpy")
    if int(version.split(".")[0]) >= 2:
        raise SetupError(
            f"numpy {version} is installed, but Triton's Python backend garbles tensors with numpy 2; "
            "run `pip install 'numpy>=1.26,<2'` (needs Python 3.10, 3.11 or 3.12)."
        )


def make_backend_folder(files: TritonFiles, folder: Path) -> Path:
    """Fill ``folder/python`` with links to the backend, its stub and our package; returns ``folder`` for --backend-directory.

    The backend starts the stub that lies beside it and puts its own folder last on the models' ``sys.path``, so ``tandem`` is found
    there when it is not installed. Links are replaced one by one, atomically: a server that runs keeps what it has open.
    """
    target = folder / "python"
    target.mkdir(parents=True, exist_ok=True)
    package = Path(tandem.__file__).resolve().parent
    for source, name in [(path, path.name) for path in files.backend_files] + [(files.stub, _STUB), (package, "tandem")]:
        fresh = target / f".{name}.{os.getpid()}"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(source)
        fresh.replace(target / name)
    return folder
