# Everything runs in .venv, which `make setup` makes and every other target keeps up to date.

PYTHON  ?= python3
OUT     ?= out
TRIALS  ?= 64
BUDGET  ?= 120
ARGS    ?=
# Twice as many workers as cores, because many tests wait for other processes, at most eight; one
# thread of OpenMP each. A worker that has no tests left takes some of another's.
WORKERS  := $(shell n=$$(($$(getconf _NPROCESSORS_ONLN) * 2)); echo $$((n > 8 ? 8 : n)))
# Bytecode is written, whatever the shell says: tests start some hundred processes.
TESTING  := env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1
PARALLEL ?= -n $(WORKERS) --dist worksteal
# What `make check` compares with, e.g. origin/main.
BASE    ?= HEAD
# Options of pip for torch alone, e.g. the index of CPU-only builds.
TORCH_ARGS ?=

BIN    := .venv/bin
STAMP  := .venv/felix-setup
LOWEST := .venv-lowest
# Tunes, optimizes and serves as the guide says.
SMOKE  := tests/docs/test_tutorials.py tests/felix/test_files.py
LOCK   := requirements.lock
TORCH  := $(shell sed -n 's/^torch==.*/&/p' $(LOCK))

.DEFAULT_GOAL := help
.PHONY: help setup tune serve test test-all test-lowest conformance check lint audit format docs lock clean

help: ## show this help
	@echo "usage: make TARGET [PYTHON=python3.11] [ARGS=...]"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

setup: $(STAMP) ## make .venv with everything installed (PYTHON: which Python, at least 3.11)

tune: $(STAMP) ## tune a 512x512x512 GEMM+bias+ReLU on this CPU (OUT, TRIALS, BUDGET in seconds)
	$(BIN)/felix tune gemm:512,512,512,epilogue=bias+relu --target llvm \
		--trials $(TRIALS) --seconds $(BUDGET) --out $(OUT) $(ARGS)

serve: $(STAMP) ## run the service on this machine: API, dashboard, one tuner (data in felix-data/)
	$(BIN)/felix serve --upgrade $(ARGS)

test: $(STAMP) ## run the tests on all cores, in minutes (ARGS: options of pytest)
	$(TESTING) $(BIN)/python -m pytest $(PARALLEL) -m "not slow" $(ARGS)

test-all: $(STAMP) ## run all tests, with slow ones, whole matrices and long fuzzes
	FELIX_TESTS=all $(TESTING) $(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-lowest: $(LOWEST)/felix-setup ## the tutorials with the lowest versions that pyproject.toml admits
	$(TESTING) $(LOWEST)/bin/python -m pytest -n 2 $(SMOKE) $(ARGS)

conformance: $(STAMP) ## ONNX's cases and PyTorch's operators against their ledgers, in minutes (ARGS)
	$(TESTING) $(BIN)/python -m benchmarks.conformance $(ARGS)

check: lint ## lint, and the tests of what changed since BASE (default HEAD)
	$(TESTING) $(BIN)/python -m pytest -q $(PARALLEL) -m "not slow" \
		$$($(BIN)/python -m tests.support.touched $(BASE)) $(ARGS)

lint: $(STAMP) ## ruff, mypy, import contracts: what CI checks
	@failed=; for each in "ruff check ." "ruff format --check ." mypy "lint-imports --no-cache"; do \
		echo "$$each"; $(BIN)/$$each || failed="$$failed\n  $$each"; \
	done; test -z "$$failed" || { printf "lint failed:$$failed\n" >&2; exit 1; }

audit: $(STAMP) ## known vulnerabilities of the installed packages (asks PyPI)
	$(BIN)/python .ci/audit.py

format: $(STAMP) ## let ruff fix and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP) ## regenerate the generated pages of docs/
	$(BIN)/python docs/generate.py

lock: ## choose the versions of requirements.lock (ARGS="--upgrade [PACKAGE ...]")
	$(PYTHON) .ci/lock.py $(TORCH) --torch-args="$(TORCH_ARGS)" $(ARGS)

clean: ## remove the environments, caches and build outputs; results in out/ stay
	rm -rf .venv $(LOWEST) build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find felix costmodel tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first and alone: resolved together with packages that need it, pip may take its
# CUDA build, which is gigabytes.
$(STAMP): pyproject.toml $(LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Felix needs Python 3.11 or newer; $(PYTHON) is" \
			"$$($(PYTHON) --version 2>&1). Try: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; \
		exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { \
		echo "$(PYTHON) cannot make virtual environments" \
			"(Debian, Ubuntu: apt-get install python3-venv)" >&2; \
		rm -rf .venv; exit 1; }
	$(BIN)/python -m pip install $(TORCH_ARGS) $(TORCH)
	$(BIN)/python -m pip install -c $(LOCK) -e '.[dev,plot,baselines,onnx,server,s3,dataframe]'
	@touch $@

$(LOWEST)/felix-setup: pyproject.toml $(LOCK) .ci/lowest.py
	rm -rf $(LOWEST)
	$(PYTHON) -m venv $(LOWEST)
	$(PYTHON) .ci/lowest.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install $(TORCH_ARGS) $(TORCH)
	$(LOWEST)/bin/python -m pip install -c $(LOWEST)/constraints.txt \
		-e '.[plot,baselines,onnx,server,s3,dataframe,cluster,tracker]'
	$(LOWEST)/bin/python -m pip install -c $(LOWEST)/constraints.txt \
		pytest pytest-xdist pytest-timeout hypothesis
	$(LOWEST)/bin/python -m pip check
	@touch $@
