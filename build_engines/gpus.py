"""The GPUs that presets name: what a plan and the rules must know of them, without a driver or a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandem.errors import SetupError


@dataclass(frozen=True, slots=True)
class Gpu:
    """``sm`` is the compute capability as TensorRT-LLM writes it (89 for 8.9); an engine is bound to it.

    ``memory_gib`` is what the driver reports in total, rounded down, which is less than the name of the card says.
    ``bandwidth_gb_s`` of its memory bounds decoding; it serves time estimates only.
    """

    name: str
    sm: int
    memory_gib: float
    bandwidth_gb_s: int

    @property
    def has_fp8(self) -> bool:
        return self.sm >= 89

    @property
    def is_blackwell(self) -> bool:
        return 100 <= self.sm < 120


GPUS: Mapping[str, Gpu] = {
    "a10": Gpu("A10", 86, 22.0, 600),
    "l4": Gpu("L4", 89, 22.4, 300),
    "l40s": Gpu("L40S", 89, 44.9, 864),
    "a100-40": Gpu("A100 40 GB", 80, 39.5, 1555),
    "a100-80": Gpu("A100 80 GB", 80, 79.1, 2039),
    "h100": Gpu("H100 80 GB", 90, 79.6, 3350),
    "h200": Gpu("H200", 90, 140.0, 4800),
    "b200": Gpu("B200", 100, 178.0, 8000),
}


def find_gpu(name: str, where: str) -> Gpu:
    """Raises: SetupError naming the known ones."""
    if name not in GPUS:
        raise SetupError(f"{where}: gpu is {name!r}; give one of {', '.join(GPUS)}")
    return GPUS[name]
