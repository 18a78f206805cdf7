"""The shared library of the running Python, which Triton's stub is linked against."""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from pathlib import Path

from tandem.errors import SetupError


def library_name() -> str:
    """The soname the stub asks for, e.g. ``libpython3.11.so.1.0``."""
    return f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"


def find_library_folder(candidates: tuple[Path, ...] | None = None) -> Path | None:
    """The folder to put on LD_LIBRARY_PATH; None when the loader finds the library without help.

    The library of this very interpreter goes before one of the system. Raises: SetupError naming the Debian package.
    """
    name = library_name()
    for folder in _own_folders() if candidates is None else candidates:
        if (folder / name).is_file():
            return folder
    try:
        ctypes.CDLL(name)
    except OSError:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise SetupError(
            f"Triton's Python backend needs {name}, which this Python ({sys.executable}) does not bring; "
            f"run `apt-get install libpython{version}`, or use a Python that was built with --enable-shared."
        ) from None
    return None


def _own_folders() -> tuple[Path, ...]:
    folders = (sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LIBPL"), f"{sys.base_prefix}/lib")
    return tuple(Path(str(folder)) for folder in folders if folder)
