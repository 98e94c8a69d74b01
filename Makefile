# Commands of the project. They need only make and Python 3.11+ with pip.
#
#   make demo               train a translator on real sentences (PAIR=en-de, de-en, en-fr, fr-en, en-es, es-en)
#   make test               run the linter, type checker, layer check and the whole test suite
#   make stress             kill runs and read hostile files and requests, for hours (docs/results/stress.md)
#   make bench              measure speed, compared with other toolkits (docs/speed.md; BENCH="--rivals none" for rnnsearch only)
#   make wheel              build a wheel in dist/ with native code for this processor architecture
#   make format             format the code and sort its imports
#   make constraints        regenerate constraints.txt from .venv
#
# To choose the interpreter: make test PYTHON=python3.12. pip's own settings apply, such as PIP_EXTRA_INDEX_URL.

PAIR ?= en-de
WORKERS ?= 2
BENCH ?=
BIN := .venv/bin
PYTHON ?=
export PYTHON
# Tests start hundreds of processes, which would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test types lint layers collection stress torture bench wheel format constraints
.DELETE_ON_ERROR:

demo: .venv/.installed
	@$(BIN)/rnnsearch demo --pair $(PAIR)

test: .venv/.installed-dev
	@echo "== ruff, mypy, lint-imports (layers), collection of the tests"
	@$(MAKE) --no-print-directory --jobs 2 types lint layers collection
	@echo "== pytest"
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -rs --durations 30 --ignore tests/page
	@echo "== pytest, in a browser"
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -rs tests/page

types: .venv/.installed-dev
	@$(BIN)/mypy

lint: .venv/.installed-dev
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

layers: .venv/.installed-dev
	@$(BIN)/lint-imports --no-logo

# Errors of collection are printed early, and the tests are compiled once, not by each worker.
collection: .venv/.installed-dev
	@$(BIN)/python -m pytest --collect-only >.venv/collected.txt || { cat .venv/collected.txt; exit 1; }

stress: .venv/.installed-dev
	@$(BIN)/python -m tests.stress.kills
	@$(BIN)/python -m tests.stress.run_files
	@$(BIN)/python -m tests.stress.folders
	@$(BIN)/python -m tests.stress.http
	@$(BIN)/python -m tests.stress.hostile_clients
	@$(BIN)/python -m tests.stress.bombs
	@$(BIN)/python -m tests.stress.engine_files

torture: stress  # the former name

bench: .venv/.installed
	@$(BIN)/python -m benchmarks.speed --output docs/results $(BENCH)

wheel: .venv/.installed
	@PYTHON= scripts/wheel.sh dist

format: .venv/.installed-dev
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format

constraints: .venv/.installed-dev
	@scripts/freeze.sh

# Reinstalled only if one of these files is newer. The second target installs everything that the first does.
.venv/.installed: pyproject.toml constraints.txt
	@scripts/environment.sh ".[plots]"
	@touch $@

.venv/.installed-dev: pyproject.toml constraints.txt
	@scripts/environment.sh ".[dev]"
	@touch .venv/.installed $@
