"""Profiles: what a model repository is made of, as data. ``render`` turns one into files.

A profile may extend another: models it does not name are taken over, those it names keep what it does not say (parameters are
merged key by key), and engines are replaced whole. Values may be ``${placeholders}``; they are filled from the plan of a GPU
deployment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from tandem.capabilities import Capabilities, Capability
from tandem.errors import SetupError
from tandem.protocol import ENGINE_MODELS, MODELS

PROFILES_DIR = Path(__file__).resolve().parent / "profiles"

OMIT = object()
"""A placeholder's value that takes its parameter out of the configuration."""

_KEYS = {"profile", "extends", "max_batch_size", "models"}
_PLACEHOLDER = re.compile(r"\$\{([A-Za-z0-9_.]+)\}")


@dataclass(frozen=True, slots=True)
class Profile:
    """One parsed profile; ``where`` names the file in messages."""

    name: str
    where: str
    max_batch_size: int
    models: Mapping[str, Mapping[str, Any]]


def load_profile(profile: str | Path) -> Profile:
    """Parse and check a profile. Raises: SetupError."""
    path = PROFILES_DIR / f"{profile}.yaml" if isinstance(profile, str) else profile
    data = _read(path)
    where = path.name
    models = data["models"]
    base = None
    if "extends" in data:
        base = load_profile(str(data["extends"]))
        models = _extended(base.models, models, where)
    missing = sorted(set(MODELS) - set(models))
    unknown = sorted(set(models) - set(MODELS))
    if missing or unknown:
        raise SetupError(f"{where}: models: missing {missing}, unknown {unknown}; protocol.MODELS names the models.")
    size = data.get("max_batch_size", None if base is None else base.max_batch_size)
    return Profile(
        name=filled(where, "profile", data.get("profile")),
        where=where,
        max_batch_size=whole_number(where, "max_batch_size", size, 1),
        models=models,
    )


def fill(profile: Profile, values: Mapping[str, Any]) -> Profile:
    """Every placeholder replaced. In an engine model ``${engine.x}`` is ``values["<its name>.x"]``.

    A value that is a placeholder and nothing else keeps the type of what fills it. Raises: SetupError naming a placeholder that
    nothing fills.
    """
    models = {name: _filled_model(profile.where, name, model, values) for name, model in profile.models.items()}
    return replace(profile, models=models)


def capabilities_of(profile: Profile, name: str) -> Capabilities:
    """What an engine model can do. Every capability must be declared, true or false. Raises: SetupError."""
    where = f"{profile.where}: {name}.capabilities"
    declared = profile.models[name].get("capabilities")
    names = {each.value for each in Capability}
    if not isinstance(declared, Mapping) or set(declared) != names:
        given = set(declared) if isinstance(declared, Mapping) else set()
        raise SetupError(f"{where}: missing {sorted(names - given)}, unknown {sorted(given - names)}; say true or false for each.")
    for key, value in declared.items():
        if not isinstance(value, bool):
            raise SetupError(f"{where}.{key}: got {value!r}; write true or false.")
    return frozenset(Capability(key) for key, value in declared.items() if value)


def filled(where: str, key: str, value: object) -> str:
    """The text of a value that must be there. Booleans as Triton's parameters spell them: true, false."""
    text = str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)
    if not text.strip() or re.search(r"\$\{?\w", text):
        raise SetupError(f"{where}: {key} is not filled in (got {value!r}); give it a value in the profile.")
    return text


def whole_number(where: str, key: str, value: object, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise SetupError(f"{where}: {key}: got {value!r}; give a whole number of at least {low}.")
    return value


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(sorted(p.stem for p in PROFILES_DIR.glob("*.yaml")))
        raise SetupError(f"There is no profile {path}; known profiles are: {known}.") from None
    except yaml.YAMLError as error:
        raise SetupError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(data, dict) or not isinstance(data.get("models"), dict):
        raise SetupError(f"{path.name}: the profile needs the keys profile, max_batch_size and models.")
    unknown = sorted(set(data) - _KEYS)
    if unknown:
        raise SetupError(f"{path.name}: unknown keys {unknown}; known are {sorted(_KEYS)}.")
    return data


def _extended(base: Mapping[str, Any], own: Mapping[str, Any], where: str) -> dict[str, Any]:
    models = {name: model for name, model in base.items() if name not in ENGINE_MODELS}
    for name, model in own.items():
        if not isinstance(model, Mapping):
            raise SetupError(f"{where}: {name}: got {model!r}; give a mapping.")
        inherited = models.get(name, {})
        models[name] = {**inherited, **model}
        if "parameters" in model:
            models[name]["parameters"] = {**inherited.get("parameters", {}), **model["parameters"]}
    return models


def _filled_model(where: str, name: str, model: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    def look_up(placeholder: str, path: str) -> Any:
        key = placeholder.replace("engine.", f"{name}.", 1) if placeholder.startswith("engine.") else placeholder
        if key not in values:
            raise SetupError(
                f"{where}: {path} is not filled in: nothing gives ${{{key}}}; render with a plan (`tandem engines plan`)."
            )
        return values[key]

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, Mapping):
            walked = {key: walk(item, f"{path}.{key}") for key, item in value.items()}
            return {key: item for key, item in walked.items() if item is not OMIT}
        if isinstance(value, list):
            return [walk(item, path) for item in value]
        if not isinstance(value, str):
            return value
        whole = _PLACEHOLDER.fullmatch(value)
        if whole:
            return look_up(whole[1], path)
        return _PLACEHOLDER.sub(lambda match: str(look_up(match[1], path)), value)

    result: dict[str, Any] = walk(model, name)
    return result
