#!/usr/bin/env bash
# Remake every lock file from pyproject.toml. dev.lock is made first; the others are held to its versions.
# Needs uv (pip install uv). Hashes cover every Python from 3.10 on.
set -euo pipefail
cd "$(dirname "$0")/.."

compile() {
    uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-header --no-emit-index-url --upgrade "$@"
}

compile pyproject.toml --extra dev --extra loadtest --output-file requirements/dev.lock
compile pyproject.toml --constraint requirements/dev.lock --output-file requirements/serve.lock
compile pyproject.toml --extra gpu-build --constraint requirements/serve.lock --output-file requirements/gpu-build.lock
compile pyproject.toml --extra bench --constraint requirements/serve.lock --output-file requirements/bench.lock
compile requirements/build.in --constraint requirements/dev.lock --output-file requirements/build.lock
compile requirements/no-deps.in --no-deps --output-file requirements/no-deps.lock
