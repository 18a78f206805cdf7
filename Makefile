# Tandem: two commands are enough. `make serve` runs it, `make test` proves it; both set up what they need.

# The first Python on the path that Tandem runs on; say PYTHON=/path/to/python to choose another.
PYTHON ?= $(shell for python in python3 python3.12 python3.11 python3.10; do \
    $$python -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null && { echo $$python; break; }; done)
VENV   ?= .venv
ARGS   ?=
BIN    := $(VENV)/bin

SERVE := $(VENV)/.serve-installed
DEV   := $(VENV)/.dev-installed
BENCH := $(VENV)/.bench-installed
PIP   := requirements/install.sh $(BIN)/python
SAY   := @echo "tandem:"

.DEFAULT_GOAL := help
.PHONY: help serve test check lint format e2e bench lock clean

help: ## Show the commands
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: $(SERVE) ## Set up everything, start Triton and the gateway, print the URL (ARGS="--port 9000" and so on)
	@exec $(BIN)/tandem serve $(ARGS)

test: $(DEV) ## Set up everything, run all tests, the end-to-end ones on a real server
	@$(BIN)/python -m pytest $(ARGS)

check: lint ## Format, lint, types and the fast tests, one process per core
	@$(BIN)/python -m pytest -q -n auto -m "not e2e and not weights" $(ARGS)

lint: $(DEV) ## Format, lint and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: $(DEV) ## Format the code and mend what the linter can mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

e2e: $(DEV) ## Only the end-to-end tests
	@$(BIN)/python -m pytest -m e2e $(ARGS)

bench: $(BENCH) ## Run one benchmark beside its peers (ARGS="engine --json")
	@$(BIN)/tandem bench $(ARGS)

lock: ## Remake the lock files (needs uv)
	@requirements/lock.sh

clean: ## Remove the environment and tool caches (built engines stay in the cache folder)
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "tandem: no Python 3.10, 3.11 or 3.12 found; install one, or say make PYTHON=/path/to/python" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' || { echo "tandem: $(PYTHON) is not Python 3.10, 3.11 or 3.12; install one, or say make PYTHON=/path/to/python" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "tandem: $(PYTHON) can't make environments; install python3-venv" >&2; exit 2; }
	$(SAY) "making the environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# The checkout is installed in place, so that an edit needs no second install.
$(SERVE): requirements/serve.lock requirements/no-deps.lock requirements/build.lock pyproject.toml | $(BIN)/python
	$(SAY) "installing the pinned packages, about a minute"
	@$(PIP) requirements/build.lock requirements/serve.lock requirements/no-deps.lock
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(DEV): requirements/dev.lock $(SERVE)
	$(SAY) "installing the pinned test tools"
	@$(PIP) requirements/dev.lock
	@touch $@

# llama.cpp is compiled for this machine, but without AMX tiles: compiled with GCC 12 those end the process with an illegal instruction.
NO_AMX := -mno-amx-tile -mno-amx-int8 -mno-amx-bf16
$(BENCH): requirements/bench.lock $(DEV)
	$(SAY) "installing the peers to measure against (one is compiled: some minutes)"
	@CMAKE_ARGS="-DCMAKE_C_FLAGS='$(NO_AMX)' -DCMAKE_CXX_FLAGS='$(NO_AMX)'" $(PIP) requirements/bench.lock
	@touch $@
