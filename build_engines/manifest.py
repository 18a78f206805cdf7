"""``manifest.json`` of an engine folder: what it was made from and with, what is in it, and whether it is still whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tandem.errors import SetupError

MANIFEST = "manifest.json"
ENGINE_FILES = ("model.xml", "model.bin", "config.json", "tokenizer.json", "tokenizer_config.json")
_SMALL_FILES = tuple(name for name in ENGINE_FILES if name != "model.bin")


@dataclass(frozen=True, slots=True)
class FileRecord:
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The same for CPU and GPU engines. ``limits`` are what a server must respect; ``tokenizer_sha256`` tells whether two engines
    share a vocabulary. ``commands``: what made it, a program with its arguments each. ``gpu`` and ``image`` are None for CPU
    engines, which are bound to neither. ``eval_scores``: what an evaluation of this engine gave, by name.
    """

    engine: str
    precision: str
    group_size: int
    content_hash: str
    builder_version: int
    weights: str
    weights_sha256: str
    tokenizer_sha256: str
    limits: Mapping[str, int]
    tools: Mapping[str, str]
    files: Mapping[str, FileRecord]
    commands: tuple[tuple[str, ...], ...] = ()
    calibration: Mapping[str, Any] | None = None
    gpu: Mapping[str, Any] | None = None
    image: str | None = None
    eval_scores: Mapping[str, float] = field(default_factory=dict)


def read_manifest(folder: Path) -> Manifest:
    """Raises: SetupError when it is missing or not one of ours."""
    path = folder / MANIFEST
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        files = {name: FileRecord(**record) for name, record in raw.pop("files").items()}
        raw["commands"] = tuple(tuple(command) for command in raw.get("commands", ()))
        return Manifest(**raw, files=files)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise SetupError(f"{path}: the manifest cannot be read ({type(error).__name__}); rebuild the engine") from error


def find_damage(folder: Path, *, is_full_check: bool = False) -> str | None:
    """What is wrong with the engine in ``folder``, or None.

    The cheap check compares the sizes of all files and the hashes of all but the weights; the full one hashes the weights too.
    """
    try:
        manifest = read_manifest(folder)
    except SetupError as error:
        return error.message
    for name in ENGINE_FILES:
        record, path = manifest.files.get(name), folder / name
        if record is None:
            return f"{name} is not in the manifest"
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != record.size_bytes:
            return f"{name} has {path.stat().st_size} bytes instead of {record.size_bytes}"
        if (is_full_check or name in _SMALL_FILES) and sha256_of(path) != record.sha256:
            return f"{name} was changed after the build"
    return None


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
