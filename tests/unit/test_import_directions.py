"""Who may import whom: the architecture of docs/architecture.md, held by walking the syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = {
    "tandem": ROOT / "python_backend",
    "tandem_client": ROOT / "clients",
    "tandem_gateway": ROOT / "clients",
    "tandem_cli": ROOT / "clients",
    "build_engines": ROOT,
    "loadtest": ROOT,
}

# Package -> what it may import of ours. Everything may import the base; siblings may not import each other.
BASE = {"tandem", "tandem.protocol", "tandem.types", "tandem.errors"}
CONFIG = BASE | {"tandem.config", "tandem.capabilities"}
PARTS = {"tandem.text", "tandem.routing", "tandem.models", "tandem.scheduling", "tandem.guided"}
ALLOWED: dict[str, set[str]] = {
    "tandem": set(),
    "tandem.protocol": set(),
    "tandem.errors": set(),
    "tandem.types": {"tandem.errors"},
    "tandem.capabilities": {"tandem.errors", "tandem.types"},
    "tandem.config": BASE | {"tandem.capabilities"},
    "tandem.text": CONFIG,
    "tandem.routing": CONFIG,
    "tandem.models": CONFIG,
    "tandem.scheduling": CONFIG,
    "tandem.guided": CONFIG,
    "tandem.engine": CONFIG | {"tandem.models", "tandem.scheduling", "tandem.guided"},
    "tandem.orchestration": CONFIG | {"tandem.text", "tandem.routing", "tandem.scheduling", "tandem.guided"},
    "tandem.triton": CONFIG | PARTS | {"tandem.engine", "tandem.orchestration"},
    "tandem.server": CONFIG,
    "build_engines": CONFIG | {"tandem.models"},
    "tandem_client": {"tandem", "tandem.protocol", "tandem.errors"},
    "tandem_gateway": {"tandem", "tandem.protocol", "tandem.errors", "tandem_client"},
    "tandem_cli": {"*"},
    "loadtest": {"*"},
}
HEAVY = {
    "torch": {"build_engines"},
    "modelopt": {"build_engines"},
    "triton_python_backend_utils": {"tandem.triton"},
    "openvino": {"tandem.models", "build_engines", "loadtest"},
    "nncf": {"build_engines"},
    "tritonclient": {"tandem_client", "tandem_gateway", "tandem.server", "build_engines", "loadtest"},
    "fastapi": {"tandem_gateway"},
    "llguidance": {"tandem.guided", "loadtest"},
    "tokenizers": {"tandem.text", "tandem.models", "tandem.routing", "build_engines"},
    "onnxruntime": {"tandem.routing", "build_engines"},
    "onnx": {"build_engines"},
}


def package_of(module: str) -> str | None:
    """The row of ALLOWED a module belongs to, or None for a module that is not ours."""
    parts = module.split(".")
    for end in (2, 1):
        if ".".join(parts[:end]) in ALLOWED:
            return ".".join(parts[:end])
    return None


def modules() -> Iterator[tuple[str, Path]]:
    for name, root in SOURCE_ROOTS.items():
        for path in sorted((root / name).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            # `from tandem import errors` names the module tandem.errors.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


ALL_MODULES = list(modules())


@pytest.mark.parametrize(("module", "path"), ALL_MODULES, ids=[name for name, _ in ALL_MODULES])
def test_module_when_it_imports_ours_then_only_leftward(module: str, path: Path) -> None:
    own = package_of(module)
    assert own is not None, f"{module} stands in no row of the table"
    allowed = ALLOWED[own] | {own}
    for imported in imports_of(path):
        target = package_of(imported)
        if target is not None and "*" not in allowed:
            assert target in allowed, f"{module} imports {imported}"


@pytest.mark.parametrize(("module", "path"), ALL_MODULES, ids=[name for name, _ in ALL_MODULES])
def test_module_when_it_imports_a_heavy_library_then_it_owns_it(module: str, path: Path) -> None:
    for imported in imports_of(path):
        owners = HEAVY.get(imported.split(".")[0])
        assert owners is None or package_of(module) in owners, f"{module} imports {imported}"


def test_model_py_when_committed_then_thin() -> None:
    """The adapters in the model repository hold no logic: under 80 lines each."""
    adapters = sorted((ROOT / "model_repository").rglob("model.py"))
    assert adapters
    for adapter in adapters:
        assert len(adapter.read_text(encoding="utf-8").splitlines()) < 80, adapter
