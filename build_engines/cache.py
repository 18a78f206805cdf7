"""The engine cache: ``<home>/engines/<name>/<content hash>/``, built once, checked at every start, rebuilt when damaged.

::

    engines/.lock                    held by the one process that may build or repair
    engines/digests.json             hashes of weight files, valid while size and modification time stay
    engines/<name>/<hash>/           a whole engine; appears by rename, so never half-written
    engines/<name>/.building-*       an engine under construction, or what a killed build left behind
    engines/<name>/current -> <hash> what a server loads
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from build_engines.cpu_engine import BUILDER_VERSION, CALIBRATION_FILE, build_cpu_engine
from build_engines.cpu_manifest import write_manifest
from build_engines.engine_spec import CpuEngineSpec, Precision
from build_engines.manifest import find_damage, sha256_of
from build_engines.progress import Reporter
from build_engines.weights import Weights
from tandem.errors import SetupError
from tandem.models.config import ModelConfig
from tandem.models.weights import WeightSource, expected_shapes

_BUILDING = ".building-"
_HASH_CHARS = 16
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
# Weights as stored, in bytes each; an int4 engine keeps its embedding at 8 bit.
_BYTES_PER_WEIGHT = {Precision.F32: 4.0, Precision.INT8: 1.05, Precision.INT4_AWQ: 0.8}


class EngineCache:
    """All engines under one home folder. Use ``locked`` around everything that may write."""

    def __init__(self, home: Path, reporter: Reporter) -> None:
        self._root = home / "engines"
        self._reporter = reporter
        self._sources: dict[Path, WeightSource] = {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Wait until no other process builds here. Raises: SetupError when the folder cannot be written."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            lock = (self._root / ".lock").open("w")
        except OSError as error:
            raise SetupError(f"{self._root}: the engine folder cannot be written ({error.strerror}); set TANDEM_HOME") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._reporter.message("another process is building the engines; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def ensure(self, weights: Weights, spec: CpuEngineSpec) -> Path:
        """The folder of a whole engine, built if need be, with ``current`` pointing at it. Raises: SetupError."""
        weights_sha256 = self._weights_digest(weights)
        content_hash = _content_hash(weights_sha256, spec)
        folder = self._root / spec.name / content_hash
        if not self._is_whole(folder, spec):
            self._build(weights, spec, folder, weights_sha256)
        point_current_at(folder)
        return folder

    def _is_whole(self, folder: Path, spec: CpuEngineSpec) -> bool:
        if not folder.exists():
            return False
        damage = find_damage(folder)
        if damage is None:
            return True
        self._reporter.message(f"{spec.name}: the cached engine is damaged ({damage}); building it again")
        shutil.rmtree(folder)
        return False

    def _build(self, weights: Weights, spec: CpuEngineSpec, folder: Path, weights_sha256: str) -> None:
        source = self._open(weights)
        spec.check(source.config)
        folder.parent.mkdir(parents=True, exist_ok=True)
        for leftover in folder.parent.glob(f"{_BUILDING}*"):
            shutil.rmtree(leftover)
        self._check_free_space(source.config, spec)
        building = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=folder.parent))
        try:
            build_cpu_engine(source, spec, building, self._reporter)
            write_manifest(building, source, spec, weights_sha256=weights_sha256, content_hash=folder.name)
            sync(building)
            building.rename(folder)
            sync_folder(folder.parent)
        except OSError as error:
            if error.errno in _DISK_FULL:
                raise self._disk_full(spec, _needed_bytes(source.config, spec)) from error
            raise
        finally:
            shutil.rmtree(building, ignore_errors=True)  # gone already after the rename

    def _open(self, weights: Weights) -> WeightSource:
        """Parsed once for all engines of the same weights."""
        if weights.path not in self._sources:
            with self._reporter.stage(f"opening {weights.path.name}"):
                self._sources[weights.path] = weights.open()
        return self._sources[weights.path]

    def _check_free_space(self, config: ModelConfig, spec: CpuEngineSpec) -> None:
        needed = _needed_bytes(config, spec)
        if shutil.disk_usage(self._root).free < needed:
            raise self._disk_full(spec, needed)

    def _disk_full(self, spec: CpuEngineSpec, needed_bytes: int) -> SetupError:
        free = shutil.disk_usage(self._root).free
        return SetupError(
            f"{self._root}: the disk is full: the engine {spec.name} needs about {needed_bytes / 1e6:.0f} MB and "
            f"{free / 1e6:.0f} MB are free; free some space or set TANDEM_HOME to another disk"
        )

    def _weights_digest(self, weights: Weights) -> str:
        """One hash over all files of a model. Hashes of single files are remembered: a big model takes minutes to read."""
        store = self._root / "digests.json"
        known = _read_digests(store)
        digests: dict[str, str] = {}
        total = hashlib.sha256()
        for path in weights.files:
            status = path.stat()
            key = f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}"
            if key in known:
                digests[key] = known[key]
            else:
                with self._reporter.stage(f"hashing {path.name}"):
                    digests[key] = sha256_of(path)
            total.update(f"{path.name} {digests[key]}\n".encode())
        if not digests.keys() <= known.keys():
            _write_atomically(store, json.dumps(known | digests, indent=1))
        return total.hexdigest()


def _content_hash(weights_sha256: str, spec: CpuEngineSpec) -> str:
    parts = {"weights": weights_sha256, "spec": asdict(spec), "builder": BUILDER_VERSION}
    if spec.precision is Precision.INT4_AWQ:
        parts["calibration"] = sha256_of(CALIBRATION_FILE)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:_HASH_CHARS]


def _needed_bytes(config: ModelConfig, spec: CpuEngineSpec) -> int:
    weights = sum(_product(shape) for shape in expected_shapes(config).values())
    return int(weights * _BYTES_PER_WEIGHT[spec.precision]) + 32_000_000  # tokenizer, graph, room to move


def _product(shape: tuple[int, ...]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result


def point_current_at(folder: Path) -> None:
    """Swap the relative symlink ``current`` in one step."""
    link = folder.parent / "current"
    if link.is_symlink() and os.readlink(link) == folder.name:
        return
    fresh = folder.parent / f"{_BUILDING}link"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(folder.name)
    fresh.replace(link)


def sync(folder: Path) -> None:
    """Everything in ``folder`` is on the disk afterwards, so that a power cut cannot leave a renamed but empty engine."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_digests(store: Path) -> dict[str, str]:
    """A store that is missing or damaged only costs the time to hash again."""
    try:
        content = json.loads(store.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_atomically(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
