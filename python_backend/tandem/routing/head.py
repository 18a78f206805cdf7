"""The head of the route classifier: two linear models over one feature vector, calibrated; and the file it lives in.

::

    [embeddings by the chosen layers, each of unit length | hashed n-grams | surface]  ─► logits of the tasks ─► softmax
                                                                                   └─► logit of "fast suffices" ─► Platt ─► 0..1

``<name>.npz`` holds the weights (float16), ``<name>.json`` everything else: classes, calibration, operating point, how it was made.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tandem.errors import SetupError
from tandem.routing.classifier_features import NUM_BUCKETS, SURFACE

FloatArray = npt.NDArray[np.float32]
VERSION = 1
DEFAULT_NAME = "route_head"


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """``threshold``: fast from this probability on. Between ``grey_low`` and ``grey_high`` the classifier is not sure of itself."""

    threshold: float
    grey_low: float
    grey_high: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.grey_low <= self.threshold <= self.grey_high <= 1.0:
            raise SetupError(f"operating point {asdict(self)}: give 0 <= grey_low <= threshold <= grey_high <= 1")


@dataclass(frozen=True, slots=True)
class Platt:
    """Logit -> probability: 1 / (1 + exp(-(slope * logit + offset))). Platt 1999, "Probabilistic outputs for SVMs"."""

    slope: float = 1.0
    offset: float = 0.0

    def probability(self, logit: float) -> float:
        value = self.slope * logit + self.offset
        return float(1.0 / (1.0 + np.exp(-min(max(value, -60.0), 60.0))))


@dataclass(frozen=True, slots=True)
class Head:
    """``weights`` [num_features, num_tasks + 1]: the last column is that of "fast suffices"; ``bias`` [num_tasks + 1].

    ``layers``: which rows of ``Described.layer_means`` are read. ``surface_mean`` and ``surface_scale`` [len(SURFACE)].
    """

    encoder: str
    layers: tuple[int, ...]
    tasks: tuple[str, ...]
    weights: FloatArray
    bias: FloatArray
    surface_mean: FloatArray
    surface_scale: FloatArray
    platt: Platt
    temperature: float
    operating_point: OperatingPoint
    made_by: Mapping[str, Any]

    def score(self, layer_means: FloatArray, ngrams: Mapping[int, float], surface: FloatArray) -> tuple[float, FloatArray]:
        """Probability that the fast path suffices, and those of the tasks [num_tasks].

        ``layer_means`` as in ``Described``. Raises: ValueError when they do not fit the weights.
        """
        dense = np.concatenate([embedding(layer_means, self.layers), self.scaled(surface)])
        begin = self.num_embedding
        logits = self.bias + dense[:begin] @ self.weights[:begin] + dense[begin:] @ self.weights[begin + NUM_BUCKETS :]
        if ngrams:
            rows = begin + np.fromiter(ngrams.keys(), np.int64, len(ngrams))
            logits = logits + np.fromiter(ngrams.values(), np.float32, len(ngrams)) @ self.weights[rows]
        return self.platt.probability(float(logits[-1])), softmax(logits[:-1] / self.temperature)

    @property
    def num_embedding(self) -> int:
        return self.weights.shape[0] - NUM_BUCKETS - len(SURFACE)

    def scaled(self, surface: FloatArray) -> FloatArray:
        return scale_surface(surface, self.surface_mean, self.surface_scale)

    def save(self, folder: Path, name: str = DEFAULT_NAME) -> None:
        """Write both files; equal heads give equal bytes."""
        arrays = {
            "weights": self.weights,
            "bias": self.bias,
            "surface_mean": self.surface_mean,
            "surface_scale": self.surface_scale,
        }
        folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(folder / f"{name}.npz", **{key: value.astype(np.float16) for key, value in arrays.items()})
        about = {
            "version": VERSION,
            "encoder": self.encoder,
            "layers": list(self.layers),
            "tasks": list(self.tasks),
            "platt": asdict(self.platt),
            "temperature": self.temperature,
            "operating_point": asdict(self.operating_point),
            "made_by": dict(self.made_by),
        }
        (folder / f"{name}.json").write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def load_head(folder: Path | None = None, name: str = DEFAULT_NAME) -> Head:
    """The head in ``folder``, or the one shipped with the package. Raises: SetupError."""
    folder = shipped_folder() if folder is None else folder
    about = _read_about(folder / f"{name}.json")
    try:
        with np.load(folder / f"{name}.npz", allow_pickle=False) as file:
            arrays = {
                key: np.ascontiguousarray(file[key], np.float32) for key in ("weights", "bias", "surface_mean", "surface_scale")
            }
        head = Head(
            encoder=about["encoder"],
            layers=tuple(about["layers"]),
            tasks=tuple(about["tasks"]),
            platt=Platt(**about["platt"]),
            temperature=float(about["temperature"]),
            operating_point=OperatingPoint(**about["operating_point"]),
            made_by=about["made_by"],
            **arrays,
        )
        if head.weights.shape[1:] != (len(head.tasks) + 1,) or head.bias.shape != head.weights.shape[1:] or head.num_embedding < 1:
            raise ValueError(f"weights of shape {head.weights.shape} for {len(head.tasks)} tasks")
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise SetupError(f"{folder / name}: not a route head ({error}); make it with `tandem route train`") from error
    return head


def read_operating_point(folder: Path | None = None, name: str = DEFAULT_NAME) -> OperatingPoint:
    """Only the threshold and the grey band of a head. Raises: SetupError."""
    path = (shipped_folder() if folder is None else folder) / f"{name}.json"
    try:
        return OperatingPoint(**_read_about(path)["operating_point"])
    except (KeyError, TypeError) as error:
        raise SetupError(f"{path}: no operating point ({error}); make the head with `tandem route train`") from error


def shipped_folder() -> Path:
    return Path(str(resources.files("tandem.routing")))


def embedding(layer_means: FloatArray, layers: tuple[int, ...]) -> FloatArray:
    """The chosen rows of [n, hidden_size], each of unit length, in a row. Raises: IndexError for an unknown row."""
    chosen = layer_means[list(layers)]
    norms = np.linalg.norm(chosen, axis=1, keepdims=True)
    unit: FloatArray = (chosen / np.maximum(norms, 1e-12)).reshape(-1)
    return unit


def scale_surface(surface: FloatArray, mean: FloatArray, scale: FloatArray) -> FloatArray:
    """Zero mean, unit variance, cut at three deviations: an unusual length must not outweigh everything else."""
    scaled: FloatArray = np.clip((surface - mean) / scale, -3.0, 3.0)
    return scaled


def softmax(logits: FloatArray) -> FloatArray:
    powers = np.exp(logits - logits.max())
    shares: FloatArray = (powers / powers.sum()).astype(np.float32)
    return shares


def _read_about(path: Path) -> dict[str, Any]:
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SetupError(f"{path}: the route head cannot be read ({error}); make it with `tandem route train`") from error
    if not isinstance(about, dict) or about.get("version") != VERSION:
        raise SetupError(f"{path}: this program reads route heads of version {VERSION}; make it with `tandem route train`")
    return about
