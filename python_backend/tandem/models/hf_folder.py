"""A local Hugging Face model folder as a weight source: ``config.json``, safetensors (sharded or not), tokenizer files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tandem.errors import SetupError
from tandem.models.config import SUPPORTED_ARCHITECTURES, ModelConfig, parse_hf_config
from tandem.models.safetensors_file import SafetensorsFile
from tandem.models.weights import Float32Array, expected_shapes

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
# Newer folders keep the chat template in a file of its own; the engine folder has it in tokenizer_config.json.
_CHAT_TEMPLATE_FILE = "chat_template.jinja"


class HfFolder:
    """Implements :class:`tandem.models.weights.WeightSource`."""

    def __init__(self, folder: Path) -> None:
        """Raises: SetupError naming the folder, what was found and what is supported."""
        self._folder = folder
        if not folder.is_dir():
            raise SetupError(f"{folder}: there is no such folder; give a local model folder or a GGUF file")
        self._config = parse_hf_config(_read_json(folder / "config.json"), str(folder / "config.json"))
        self._shards = _find_shards(folder)
        self._shapes = expected_shapes(self._config)
        for name in _TOKENIZER_FILES:
            if not (folder / name).is_file():
                raise SetupError(f"{folder}: {name} is missing; a model folder needs {' and '.join(_TOKENIZER_FILES)}")
        missing = [name for name in self._shapes if name not in self._shards]
        if missing:
            raise SetupError(
                f"{folder}: {len(missing)} tensors are missing, the first is {missing[0]}; "
                f"supported: float weights of {SUPPORTED_ARCHITECTURES}"
            )

    @property
    def origin(self) -> Path:
        return self._folder

    @property
    def config(self) -> ModelConfig:
        return self._config

    def tensor(self, name: str) -> Float32Array:
        array = self._shards[name].tensor(name)
        if array.shape != self._shapes[name]:
            raise SetupError(f"{self._folder}: {name} has shape {array.shape}, config.json asks for {self._shapes[name]}")
        return array

    def write_tokenizer(self, folder: Path) -> None:
        shutil.copyfile(self._folder / "tokenizer.json", folder / "tokenizer.json")
        config = _read_json(self._folder / "tokenizer_config.json")
        template = self._folder / _CHAT_TEMPLATE_FILE
        if "chat_template" not in config and template.is_file():
            config["chat_template"] = template.read_text(encoding="utf-8")
        text = json.dumps(config, ensure_ascii=False, indent=2) + "\n"
        (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def _find_shards(folder: Path) -> dict[str, SafetensorsFile]:
    """Tensor name -> the file that holds it."""
    index = folder / _INDEX
    if index.is_file():
        weight_map: dict[str, str] = _read_json(index).get("weight_map", {})
        files = {name: SafetensorsFile(folder / name) for name in sorted(set(weight_map.values()))}
        return {tensor: files[name] for tensor, name in weight_map.items() if tensor in files[name].names()}
    if (folder / _SINGLE).is_file():
        file = SafetensorsFile(folder / _SINGLE)
        return dict.fromkeys(file.names(), file)
    found = sorted({path.suffix for path in folder.iterdir() if path.suffix in {".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack"}})
    kinds = f"only {', '.join(found)} files" if found else "no weights"
    raise SetupError(f"{folder}: there are {kinds} in it; supported: {_SINGLE}, or shards with {_INDEX}")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SetupError(f"{path.parent}: {path.name} is missing; give a model folder in Hugging Face form") from None
    except (OSError, ValueError) as error:
        raise SetupError(f"{path}: this is no readable JSON file ({error})") from error
    if not isinstance(content, dict):
        raise SetupError(f"{path}: a JSON object is needed")
    return content
