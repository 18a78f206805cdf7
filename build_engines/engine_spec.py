"""What a CPU engine is to be: a name, a precision, a group size. Data only; ``cpu_engine`` builds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from tandem.errors import SetupError
from tandem.models.config import ModelConfig

PER_CHANNEL = -1
"""Group size that gives one scale to a whole row of weights."""


class Precision(str, Enum):
    """How the weights of an engine are stored."""

    INT4_AWQ = "int4_awq"
    INT8 = "int8"
    F32 = "f32"


@dataclass(frozen=True, slots=True)
class CpuEngineSpec:
    """One engine. ``group_size`` (weights that share a scale) only counts for INT4_AWQ."""

    name: str
    precision: Precision
    group_size: int = 64

    def check(self, config: ModelConfig) -> None:
        """Refuse a group size that does not divide every quantized row, before any calibration has run.

        Raises: SetupError naming the layers and their sizes.
        """
        if self.precision is not Precision.INT4_AWQ or self.group_size == PER_CHANNEL:
            return
        rows = _row_sizes(config)
        if self.group_size < 1:
            raise SetupError(
                f"{self.name}: group size {self.group_size} is not possible; use a positive divisor of {_listed(rows)}, "
                f"or {PER_CHANNEL} for one scale per row"
            )
        wrong = {layer: size for layer, size in rows.items() if size % self.group_size}
        if wrong:
            raise SetupError(
                f"{self.name}: group size {self.group_size} does not divide the rows of {_listed(wrong)}; "
                f"use a common divisor such as {_suggested(rows)}, or {PER_CHANNEL} for one scale per row"
            )


CPU_ENGINES: tuple[CpuEngineSpec, ...] = (
    CpuEngineSpec("fast_int8", Precision.INT8),
    CpuEngineSpec("slow", Precision.F32),
    CpuEngineSpec("fast_int4", Precision.INT4_AWQ),
)
"""The engines of the ``cpu`` profile, the quickest to build first."""

FAST_ENGINES = ("fast_int4", "fast_int8")


def _row_sizes(config: ModelConfig) -> Mapping[str, int]:
    """Input size of each quantized layer; the same in every decoder layer."""
    return {
        "self_attn.qkv_proj": config.hidden_size,
        "self_attn.o_proj": config.num_heads * config.head_dim,
        "mlp.gate_up_proj": config.hidden_size,
        "mlp.down_proj": config.intermediate_size,
    }


def _listed(rows: Mapping[str, int]) -> str:
    return ", ".join(f"{layer} ({size})" for layer, size in rows.items())


def _suggested(rows: Mapping[str, int]) -> int:
    return max(size for size in (128, 64, 32, 16, 8, 4, 2, 1) if all(row % size == 0 for row in rows.values()))
