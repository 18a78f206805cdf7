"""Render a Triton model repository from a profile: ``python -m build_engines.render cpu model_repository``.

A profile (``profiles/*.yaml``) is data: per model its entry point, its batching and its parameters. The tensors come from
``tandem.protocol``. What is rendered is complete: a value that is missing, empty or still a ``${placeholder}`` is an error here,
not at load time in the server. The committed ``model_repository/`` is the rendered ``cpu`` profile; a test keeps it so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from build_engines.profile import PROFILES_DIR, Profile, capabilities_of, fill, filled, load_profile, whole_number
from tandem.capabilities import EXTENSION_TENSORS, Capabilities
from tandem.errors import SetupError
from tandem.protocol import ENGINE_MODELS, MODELS, ROUTER_MODEL, ModelSpec, TensorSpec

__all__ = ["PROFILES_DIR", "load_profile", "main", "render", "render_files"]

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

_MODEL_KEYS = {"backend", "entry", "max_batch_size", "decoupled", "instance_count", "dynamic_batching", "parameters"}
_BACKENDS = ("python", "tensorrtllm")
_BATCHING_KEYS = {"max_queue_delay_microseconds", "max_queue_size"}


def render(profile: str | Path, out_dir: Path, values: Mapping[str, Any] | None = None) -> tuple[Path, ...]:
    """Write the repository of ``profile`` (a name in ``profiles/`` or a path) into ``out_dir``.

    ``values`` fill the placeholders of a profile for GPUs. Creates and overwrites files, deletes none. Returns the written files,
    sorted. Raises: SetupError naming file, model, key and remedy when the profile is not complete.
    """
    parsed = fill(load_profile(profile), values or {})
    written = []
    for name, text in sorted(render_files(parsed).items()):
        path = out_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    for name, model in parsed.models.items():
        if (
            "ensemble" in model or model.get("backend", "python") != "python"
        ):  # Triton wants a version folder; git keeps no empty one
            path = out_dir / name / "1" / ".gitkeep"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
            written.append(path)
    return tuple(sorted(written))


def render_files(profile: Profile) -> dict[str, str]:
    """Relative path -> text of every file with content. Pure. Raises: SetupError."""
    files: dict[str, str] = {}
    able = {name: capabilities_of(profile, name) for name in profile.models if name in ENGINE_MODELS}
    for name, model in profile.models.items():
        header = _HEADER.format(profile=profile.name)
        if "ensemble" in model:
            files[f"{name}/config.pbtxt"] = header + _ensemble_config(profile, name, model)
            continue
        _only(f"{profile.where}: {name}", model, _MODEL_KEYS | ({"capabilities"} if name in able else set()))
        spec = _engine_tensors(able[name]) if name in able else MODELS[name]
        parameters = dict(model.get("parameters", {}))
        if name == ROUTER_MODEL:
            _only(f"{profile.where}: {name}.parameters", {"engine_capabilities"} & set(parameters), set())
            parameters["engine_capabilities"] = _capabilities_text(able)
        backend = model.get("backend", "python")
        files[f"{name}/config.pbtxt"] = header + _model_config(profile, name, {**model, "parameters": parameters}, spec, backend)
        if backend == "python":
            files[f"{name}/1/model.py"] = _model_py(profile.where, name, model)
    return files


def _engine_tensors(able: Capabilities) -> ModelSpec:
    """The tensors of the contract, and those of ours that the engine's capabilities bring."""
    full = MODELS[ENGINE_MODELS[0]]
    kept = [
        tuple(tensor for tensor in tensors if EXTENSION_TENSORS.get(tensor.name) in (None, *able))
        for tensors in (full.inputs, full.outputs)
    ]
    return ModelSpec(inputs=kept[0], outputs=kept[1])


def _capabilities_text(able: Mapping[str, Capabilities]) -> str:
    return ",".join(f"{name}={'+'.join(sorted(each.value for each in has))}" for name, has in sorted(able.items()))


def _model_py(where: str, name: str, model: Mapping[str, Any]) -> str:
    entry = filled(where, f"{name}.entry", model.get("entry"))
    module, separator, class_name = entry.partition(":")
    if not separator or not class_name.isidentifier():
        raise SetupError(f"{where}: {name}.entry is {entry!r}; write it as package.module:Class.")
    return _MODEL_PY.format(name=name, module=module, class_name=class_name)


def _model_config(profile: Profile, name: str, model: Mapping[str, Any], spec: ModelSpec, backend: object) -> str:
    where = profile.where
    if backend not in _BACKENDS:
        raise SetupError(f"{where}: {name}.backend is {backend!r}; give one of {', '.join(_BACKENDS)}.")
    batch_size = whole_number(where, f"{name}.max_batch_size", model.get("max_batch_size", profile.max_batch_size), 1)
    parts = [
        f'name: "{name}"\nbackend: "{backend}"\nmax_batch_size: {batch_size}\n',
        _transaction_policy(where, name, model.get("decoupled")),
    ]
    if "dynamic_batching" in model:
        parts.append(_dynamic_batching(where, name, batch_size, model["dynamic_batching"]))
    parts.append(_tensors(spec))
    count = whole_number(where, f"{name}.instance_count", model.get("instance_count"), 1)
    parts.append(f"instance_group [\n  {{\n    count: {count}\n    kind: KIND_CPU\n  }}\n]\n")
    for key, value in model["parameters"].items():
        text = filled(where, f"{name}.parameters.{key}", value)
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


def _dynamic_batching(file: str, name: str, batch_size: int, batching: Mapping[str, Any]) -> str:
    where = f"{file}: {name}.dynamic_batching"
    _only(where, batching, _BATCHING_KEYS)
    delay = whole_number(where, "max_queue_delay_microseconds", batching.get("max_queue_delay_microseconds"), 0)
    size = whole_number(where, "max_queue_size", batching.get("max_queue_size"), 0)
    return (
        f"dynamic_batching {{\n  preferred_batch_size: [ {batch_size} ]\n"
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


def _only(where: str, given: Iterable[str], known: set[str]) -> None:
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
