"""Render a Triton model repository from a profile: ``python -m build_engines.render cpu model_repository``.

A profile (``profiles/*.yaml``) is data: per model its entry point, its batching and its parameters. The tensors come from
``tandem.protocol``. What is rendered is complete: a value that is missing, empty or still a ``${placeholder}`` is an error here,
not at load time in the server. The committed ``model_repository/`` is the rendered ``cpu`` profile; a test keeps it so.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tandem.errors import SetupError
from tandem.protocol import MODELS, ModelSpec, TensorSpec

PROFILES_DIR = Path(__file__).resolve().parent / "profiles"

_HEADER = "# Rendered from build_engines/profiles/{profile}.yaml by build_engines/render.py; change that file, not this one.\n"

_MODEL_PY = '''\
"""Triton's entry point of the model `{name}`: a thin adapter, the logic is in {module}."""

from {module} import {class_name}


class TritonPythonModel:
    """The class that Triton's Python backend looks for."""

    def initialize(self, args):
        self._model = {class_name}.load(args)

    def execute(self, requests):
        return self._model.execute(requests)

    def finalize(self):
        self._model.close()
'''

_MODEL_KEYS = {"entry", "decoupled", "instance_count", "dynamic_batching", "parameters"}
_BATCHING_KEYS = {"max_queue_delay_microseconds", "max_queue_size"}


@dataclass(frozen=True, slots=True)
class Profile:
    """One parsed profile; ``where`` names the file in messages."""

    name: str
    where: str
    max_batch_size: int
    models: Mapping[str, Mapping[str, Any]]


def render(profile: str | Path, out_dir: Path) -> tuple[Path, ...]:
    """Write the repository of ``profile`` (a name in ``profiles/`` or a path) into ``out_dir``.

    Creates and overwrites files, deletes none. Returns the written files, sorted.
    Raises: SetupError naming file, model, key and remedy when the profile is not complete.
    """
    parsed = load_profile(profile)
    written = []
    for name, text in sorted(render_files(parsed).items()):
        path = out_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    for name, model in parsed.models.items():
        if "ensemble" in model:  # Triton wants a version folder; git keeps no empty one
            path = out_dir / name / "1" / ".gitkeep"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
            written.append(path)
    return tuple(sorted(written))


def load_profile(profile: str | Path) -> Profile:
    """Parse and check a profile. Raises: SetupError."""
    path = PROFILES_DIR / f"{profile}.yaml" if isinstance(profile, str) else profile
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(sorted(p.stem for p in PROFILES_DIR.glob("*.yaml")))
        raise SetupError(f"There is no profile {path}; known profiles are: {known}.") from None
    except yaml.YAMLError as error:
        raise SetupError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
    where = path.name
    if not isinstance(data, dict) or not isinstance(data.get("models"), dict):
        raise SetupError(f"{where}: the profile needs the keys profile, max_batch_size and models.")
    missing = sorted(set(MODELS) - set(data["models"]))
    unknown = sorted(set(data["models"]) - set(MODELS))
    if missing or unknown:
        raise SetupError(f"{where}: models: missing {missing}, unknown {unknown}; protocol.MODELS names the models.")
    return Profile(
        name=_filled(where, "profile", data.get("profile")),
        where=where,
        max_batch_size=_whole_number(where, "max_batch_size", data.get("max_batch_size"), 1),
        models=data["models"],
    )


def render_files(profile: Profile) -> dict[str, str]:
    """Relative path -> text of every file with content. Pure."""
    files: dict[str, str] = {}
    for name, model in profile.models.items():
        header = _HEADER.format(profile=profile.name)
        if "ensemble" in model:
            files[f"{name}/config.pbtxt"] = header + _ensemble_config(profile, name, model)
            continue
        _only(f"{profile.where}: {name}", model, _MODEL_KEYS)
        files[f"{name}/config.pbtxt"] = header + _python_config(profile, name, model)
        files[f"{name}/1/model.py"] = _model_py(profile.where, name, model)
    return files


def _model_py(where: str, name: str, model: Mapping[str, Any]) -> str:
    entry = _filled(where, f"{name}.entry", model.get("entry"))
    module, separator, class_name = entry.partition(":")
    if not separator or not class_name.isidentifier():
        raise SetupError(f"{where}: {name}.entry is {entry!r}; write it as package.module:Class.")
    return _MODEL_PY.format(name=name, module=module, class_name=class_name)


def _python_config(profile: Profile, name: str, model: Mapping[str, Any]) -> str:
    where = profile.where
    parts = [
        f'name: "{name}"\nbackend: "python"\nmax_batch_size: {profile.max_batch_size}\n',
        _transaction_policy(where, name, model.get("decoupled")),
    ]
    if "dynamic_batching" in model:
        parts.append(_dynamic_batching(profile, name, model["dynamic_batching"]))
    parts.append(_tensors(MODELS[name]))
    count = _whole_number(where, f"{name}.instance_count", model.get("instance_count"), 1)
    parts.append(f"instance_group [\n  {{\n    count: {count}\n    kind: KIND_CPU\n  }}\n]\n")
    for key, value in model.get("parameters", {}).items():
        text = _filled(where, f"{name}.parameters.{key}", value)
        parts.append(f'parameters {{\n  key: "{key}"\n  value: {{ string_value: "{_escape(text)}" }}\n}}\n')
    return "".join(parts)


def _ensemble_config(profile: Profile, name: str, model: Mapping[str, Any]) -> str:
    """Steps are wired by name: every tensor of a step model is the ensemble tensor of the same name."""
    where = f"{profile.where}: {name}"
    _only(where, model, {"ensemble"})
    steps = model["ensemble"].get("steps")
    if not isinstance(steps, list) or not steps or any(step not in MODELS for step in steps):
        raise SetupError(f"{where}.ensemble.steps: got {steps!r}; list names out of {sorted(MODELS)}.")
    known = {spec.name for spec in MODELS[name].inputs}
    text = [f'name: "{name}"\nplatform: "ensemble"\nmax_batch_size: {profile.max_batch_size}\n', _tensors(MODELS[name])]
    text.append("ensemble_scheduling {\n  step [\n")
    blocks = []
    for step in steps:
        loose = [spec.name for spec in MODELS[step].inputs if spec.name not in known]
        if loose:
            raise SetupError(f"{where}: step {step} needs {loose}, which no earlier step and no input of the ensemble gives.")
        known |= {spec.name for spec in MODELS[step].outputs}
        blocks.append(_ensemble_step(step, MODELS[step]))
    missing = [spec.name for spec in MODELS[name].outputs if spec.name not in known]
    if missing:
        raise SetupError(f"{where}: no step gives the outputs {missing}.")
    text.append(",\n".join(blocks))
    text.append("\n  ]\n}\n")
    return "".join(text)


def _ensemble_step(step: str, spec: ModelSpec) -> str:
    maps = [("input_map", tensor) for tensor in spec.inputs] + [("output_map", tensor) for tensor in spec.outputs]
    lines = "".join(f'      {kind} {{ key: "{t.name}" value: "{t.name}" }}\n' for kind, t in maps)
    return f'    {{\n      model_name: "{step}"\n      model_version: -1\n{lines}    }}'


def _transaction_policy(where: str, name: str, decoupled: object) -> str:
    if not isinstance(decoupled, bool):
        raise SetupError(f"{where}: {name}.decoupled: got {decoupled!r}; write true or false.")
    return f"model_transaction_policy {{\n  decoupled: {str(decoupled).lower()}\n}}\n"


def _dynamic_batching(profile: Profile, name: str, batching: Mapping[str, Any]) -> str:
    where = f"{profile.where}: {name}.dynamic_batching"
    _only(where, batching, _BATCHING_KEYS)
    delay = _whole_number(where, "max_queue_delay_microseconds", batching.get("max_queue_delay_microseconds"), 0)
    size = _whole_number(where, "max_queue_size", batching.get("max_queue_size"), 0)
    return (
        f"dynamic_batching {{\n  preferred_batch_size: [ {profile.max_batch_size} ]\n"
        f"  max_queue_delay_microseconds: {delay}\n  default_queue_policy {{ max_queue_size: {size} }}\n}}\n"
    )


def _tensors(spec: ModelSpec) -> str:
    inputs = ",\n".join(_tensor(tensor, is_input=True) for tensor in spec.inputs)
    outputs = ",\n".join(_tensor(tensor, is_input=False) for tensor in spec.outputs)
    return f"input [\n{inputs}\n]\noutput [\n{outputs}\n]\n"


def _tensor(tensor: TensorSpec, *, is_input: bool) -> str:
    lines = [f'name: "{tensor.name}"', f"data_type: {tensor.dtype.pbtxt}", f"dims: [ {', '.join(map(str, tensor.dims))} ]"]
    if tensor.reshape is not None:
        lines.append(f"reshape: {{ shape: [ {', '.join(map(str, tensor.reshape))} ] }}")
    if is_input and tensor.optional:
        lines.append("optional: true")
    if is_input and tensor.ragged:
        lines.append("allow_ragged_batch: true")
    body = "\n".join(f"    {line}" for line in lines)
    return f"  {{\n{body}\n  }}"


def _filled(where: str, key: str, value: object) -> str:
    """The text of a value that must be there. Booleans as Triton's parameters spell them: true, false."""
    text = str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)
    if not text.strip() or re.search(r"\$\{?\w", text):
        raise SetupError(f"{where}: {key} is not filled in (got {value!r}); give it a value in the profile.")
    return text


def _whole_number(where: str, key: str, value: object, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise SetupError(f"{where}: {key}: got {value!r}; give a whole number of at least {low}.")
    return value


def _only(where: str, given: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(given) - known)
    if unknown:
        raise SetupError(f"{where}: unknown keys {unknown}; known are {sorted(known)}.")


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def main(argv: list[str] | None = None) -> int:
    """Command line: profile and target folder. Exit code 2 with one sentence when the profile is not complete."""
    parser = argparse.ArgumentParser(prog="python -m build_engines.render", description=main.__doc__)
    parser.add_argument("profile", help="a name in build_engines/profiles/, or a path ending in .yaml")
    parser.add_argument("out_dir", type=Path)
    args = parser.parse_args(argv)
    try:
        render(Path(args.profile) if args.profile.endswith(".yaml") else args.profile, args.out_dir)
    except SetupError as error:
        sys.stderr.write(f"{error.message}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
