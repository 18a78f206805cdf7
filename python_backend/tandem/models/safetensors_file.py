"""Reads tensors out of a ``.safetensors`` file as float32, bfloat16 included, without torch.

Format: 8 bytes little-endian header length, a JSON header ``{name: {dtype, shape, data_offsets}}``, then the data.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tandem.errors import SetupError

_DTYPES: dict[str, npt.DTypeLike] = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_MAX_HEADER_BYTES = 100 * 1024 * 1024


class SafetensorsFile:
    """One file; tensors are read from disk when asked for and not kept."""

    def __init__(self, path: Path) -> None:
        """Raises: SetupError when the file is missing, cut short or not of this format."""
        self.path = path
        try:
            self._size_bytes = path.stat().st_size
            with path.open("rb") as file:
                (header_bytes,) = struct.unpack("<Q", file.read(8))
                if header_bytes > min(self._size_bytes, _MAX_HEADER_BYTES):
                    raise ValueError("its header is longer than the file")
                header: dict[str, Any] = json.loads(file.read(header_bytes))
        except FileNotFoundError:
            raise SetupError(f"{path}: the file is missing; the model folder is incomplete") from None
        except (OSError, ValueError, struct.error) as error:
            raise SetupError(f"{path}: this is not a readable safetensors file ({error}); fetch it again") from error
        self._data_start = 8 + header_bytes
        self._entries = {name: entry for name, entry in header.items() if name != "__metadata__"}

    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """A fresh float32 array. Raises: SetupError for integers and when the data end too soon. KeyError: unknown name."""
        entry = self._entries[name]
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None:
            raise SetupError(f"{self.path}: {name} has type {entry['dtype']}; supported: {', '.join(_DTYPES)}")
        begin, end = entry["data_offsets"]
        if self._data_start + end > self._size_bytes:
            raise SetupError(f"{self.path}: the file is cut short within {name}; fetch it again")
        with self.path.open("rb") as file:
            file.seek(self._data_start + begin)
            array = np.frombuffer(file.read(end - begin), dtype=dtype).reshape(entry["shape"])
        if entry["dtype"] == "BF16":  # the upper half of a float32
            return (array.astype(np.uint32) << 16).view(np.float32)
        return array.astype(np.float32)
