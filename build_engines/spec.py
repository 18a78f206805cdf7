"""What a GPU deployment is to be: engines on GPUs, read from YAML into frozen, typed objects. Rules and plan judge it.

Reading checks types and names only. Whether TensorRT-LLM can build and run it is for :mod:`build_engines.rules` to say, which
looks at a whole deployment and gives every reason at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import yaml

from build_engines.gpus import Gpu, find_gpu
from build_engines.model_shape import ModelShape, find_shape
from tandem.errors import SetupError
from tandem.protocol import ENGINE_MODELS

PRESETS_DIR = Path(__file__).resolve().parent / "presets"


class Flow(str, Enum):
    """How an engine is served: built by ``trtllm-build`` for the C++ backend, or loaded by the LLM API."""

    TRTLLM = "trtllm"
    LLMAPI = "llmapi"


class GpuPrecision(str, Enum):
    """How weights (and activations) are stored; the names of TensorRT-LLM's ``--qformat`` where it has one."""

    INT4_AWQ = "int4_awq"
    INT8_WO = "int8_wo"
    INT8_SQ = "int8_sq"
    W4A8_AWQ = "w4a8_awq"
    FP8 = "fp8"
    NVFP4 = "nvfp4"
    FP16 = "fp16"


class KvDtype(str, Enum):
    FP16 = "fp16"
    INT8 = "int8"
    FP8 = "fp8"


class Speculation(str, Enum):
    """``--speculative_decoding_mode``; ``draft_tokens_external`` is the one that the router drives."""

    NONE = "none"
    DRAFT_TOKENS_EXTERNAL = "draft_tokens_external"
    LOOKAHEAD = "lookahead_decoding"
    MEDUSA = "medusa"
    EAGLE = "eagle"


class BatchPolicy(str, Enum):
    GUARANTEED_NO_EVICT = "guaranteed_no_evict"
    MAX_UTILIZATION = "max_utilization"


class Calibration(str, Enum):
    """Which texts the calibration sees: those of the tasks that the engine is for."""

    EXTRACTION = "extraction"
    CODE = "code"
    GENERAL = "general"


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine. ``model``: a known name or a local Hugging Face folder. ``gpus``: device ids, one per rank (``tp * pp``).

    ``group_size`` counts for AWQ only. ``kv_share`` is the part of the memory left on its GPUs, after the weights and activations
    of *all* engines there, that its KV cache gets; the plan turns it into a number of tokens, so that nothing depends on the order
    in which engines load. ``max_num_tokens``: tokens of one step. ``max_seq_len``: prompt and completion together.
    """

    name: str
    model: str
    precision: GpuPrecision
    max_batch_size: int
    max_seq_len: int
    max_num_tokens: int = 8192
    group_size: int = 128
    calibration: Calibration = Calibration.GENERAL
    calibration_samples: int = 32
    kv_dtype: KvDtype = KvDtype.FP16
    tokens_per_block: int = 32
    kv_reuse: bool = True
    kv_share: float = 0.9
    chunked_context: bool = True
    paged_context_fmha: bool = True
    max_beam_width: int = 1
    speculation: Speculation = Speculation.NONE
    max_draft_len: int = 0
    tp: int = 1
    pp: int = 1
    gpus: tuple[int, ...] = (0,)
    guided_backend: str = "xgrammar"
    batch_policy: BatchPolicy = BatchPolicy.GUARANTEED_NO_EVICT
    gather_context_logits: bool = False
    logits_dtype: str = "float32"
    normalize_log_probs: bool = False

    @property
    def world_size(self) -> int:
        return self.tp * self.pp

    @property
    def is_guided(self) -> bool:
        return self.guided_backend != "none"


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """What the router asks of its engines. ``is_multi_tenant`` false declares that all callers may share KV blocks."""

    max_in_flight: int = 64
    max_draft_len: int = 0
    tokens_per_block: int = 32
    is_multi_tenant: bool = True


@dataclass(frozen=True, slots=True)
class Deployment:
    """Engines that are served together on ``num_gpus`` GPUs of one kind. ``shapes``: model name -> its shape."""

    name: str
    flow: Flow
    gpu: Gpu
    num_gpus: int
    router: RouterSpec
    engines: tuple[EngineSpec, ...]
    shapes: Mapping[str, ModelShape]

    def shape(self, engine: EngineSpec) -> ModelShape:
        return self.shapes[engine.model]


def preset_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in PRESETS_DIR.glob("*.yaml")))


def load_deployment(source: str | Path) -> Deployment:
    """A preset by name, or a YAML file by path. Raises: SetupError naming file, engine, key and remedy."""
    path = PRESETS_DIR / f"{source}.yaml" if isinstance(source, str) else source
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SetupError(f"{path} cannot be read ({error.strerror}); presets are {', '.join(preset_names())}") from error
    except yaml.YAMLError as error:
        raise SetupError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    return parse_deployment(data, path.stem, path.name)


def parse_deployment(data: object, name: str, where: str) -> Deployment:
    """From the content of a file. Raises: SetupError."""
    top = _mapping(data, where, {"flow", "gpu", "num_gpus", "router", "engines"})
    engines = _mapping(top.get("engines"), f"{where}: engines", set(ENGINE_MODELS))
    if not engines:
        raise SetupError(f"{where}: engines is empty; give some of {', '.join(ENGINE_MODELS)}")
    specs = tuple(
        _read(EngineSpec, {"name": key} | _mapping(value, f"{where}: {key}"), f"{where}: {key}") for key, value in engines.items()
    )
    return Deployment(
        name=name,
        flow=_enum(Flow, top.get("flow"), f"{where}: flow"),
        gpu=find_gpu(str(top.get("gpu")), where),
        num_gpus=_typed(int, top.get("num_gpus"), f"{where}: num_gpus"),
        router=_read(RouterSpec, _mapping(top.get("router", {}), f"{where}: router"), f"{where}: router"),
        engines=specs,
        shapes={spec.model: find_shape(spec.model, f"{where}: {spec.name}") for spec in specs},
    )


_T = TypeVar("_T")
_E = TypeVar("_E", bound=Enum)


def _read(cls: type[_T], raw: Mapping[str, Any], where: str) -> _T:
    """A frozen dataclass from a mapping, each value of the field's own type."""
    hints = get_type_hints(cls)
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(set(raw) - set(known))
    if unknown:
        raise SetupError(f"{where}: unknown keys {unknown}; known are {', '.join(known)}")
    missing = [name for name, field in known.items() if name not in raw and field.default is MISSING]
    if missing:
        raise SetupError(f"{where}: {', '.join(missing)} must be given")
    return cls(**{key: _value(hints[key], value, f"{where}: {key}") for key, value in raw.items()})


def _value(kind: Any, value: object, where: str) -> Any:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind, value, where)
    if kind == tuple[int, ...]:
        if not isinstance(value, list):
            raise SetupError(f"{where}: got {value!r}; give a list of GPU ids, such as [0, 1]")
        return tuple(_typed(int, item, where) for item in value)
    return _typed(kind, value, where)


def _typed(kind: type[_T], value: object, where: str) -> _T:
    """A whole number is a number too; a boolean is neither."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        raise SetupError(f"{where}: got {value!r}; give {words[kind]}")
    return value


def _enum(kind: type[_E], value: object, where: str) -> _E:
    try:
        return kind(value)
    except ValueError:
        raise SetupError(f"{where}: got {value!r}; give one of {', '.join(member.value for member in kind)}") from None


def _mapping(value: object, where: str, known: set[str] | None = None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SetupError(f"{where}: got {value!r:.80}; give a mapping")
    unknown = sorted(str(key) for key in set(value) - known) if known is not None else []
    if unknown:
        raise SetupError(f"{where}: unknown keys {unknown}; known are {', '.join(sorted(known or ()))}")
    return {str(key): item for key, item in value.items()}
