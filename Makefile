# The verbs of the day. Each builds .venv from the lock file when it is missing or out of date.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test check fix bench bench-peers docs lock clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

# --no-deps: the lock file is complete, so pip has nothing to resolve. The build backend comes from the lock as well.
$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("mlx needs Python 3.11 or newer.") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m compileall -q src
	touch $@

demo: $(READY) ## The whole loop on real data, in ./mlx-demo
	$(BIN)/mlx demo

# Servers under load are tested one after the other: two at a time they would take each other's cores.
SERVERS := tests/serving tests/workflows/rollouts

test: $(READY) ## All tests
	$(BIN)/python -m pytest -n auto --dist loadfile $(SERVERS:%=--ignore=%); others=$$?; \
	$(BIN)/python -m pytest $(SERVERS) && exit $$others

check: $(READY) ## Lint, format, types, import layers, generated docs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python docs/generate.py --check

fix: $(READY) ## Repair what can be repaired by a machine
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(READY) ## Figures, side by side with a floor or a peer
	$(BIN)/python benchmarks/run.py

bench-peers: $(READY) ## Install the servers that ours is measured against
	$(BIN)/python benchmarks/serving.py --install

docs: $(READY) ## Rewrite docs/cli.md from the commands
	$(BIN)/python docs/generate.py

lock: ## Resolve the dependencies anew (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --group dev --extra services pyproject.toml -o requirements.lock

clean: ## Remove what the verbs made
	rm -rf $(VENV) mlx-demo .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
