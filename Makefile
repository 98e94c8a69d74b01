# The project's commands. Each needs only Python 3.11+ with pip, and make.
#
#   make demo               a translator trained on real sentences (PAIR=en-de, de-en, en-fr, fr-en, en-es, es-en)
#   make test               lint, types, layers and the whole test suite
#   make torture            hours of kills, hostile run files, model folders, engine files and requests, and bombs
#   make bench              speed beside other toolkits (docs/speed.md; BENCH="--rivals none" for rnnsearch alone)
#   make wheel              a wheel in dist/ with the native code of this kind of processor inside
#   make format             lay the code out and sort its imports
#   make constraints        write constraints.txt anew from .venv
#
# Which Python: make test PYTHON=python3.12. Where pip looks: its own settings, such as PIP_EXTRA_INDEX_URL.

PAIR ?= en-de
WORKERS ?= 2
BENCH ?=
BIN := .venv/bin
PYTHON ?=
export PYTHON

.PHONY: demo test torture bench wheel format constraints
.DELETE_ON_ERROR:

demo: .venv/.installed
	@$(BIN)/rnnsearch demo --pair $(PAIR)

test: .venv/.installed-dev
	@echo "== ruff check"
	@$(BIN)/ruff check
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check
	@echo "== mypy"
	@$(BIN)/mypy
	@echo "== lint-imports (layers)"
	@$(BIN)/lint-imports --no-logo
	@echo "== pytest"
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -rs --durations 30 --ignore tests/page
	@echo "== pytest, in a browser"
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -rs tests/page

torture: .venv/.installed-dev
	@$(BIN)/python -m tests.torture.kills
	@$(BIN)/python -m tests.torture.run_files
	@$(BIN)/python -m tests.torture.folders
	@$(BIN)/python -m tests.torture.http
	@$(BIN)/python -m tests.torture.bombs
	@$(BIN)/python -m tests.torture.engine_files

bench: .venv/.installed
	@$(BIN)/python -m benchmarks.speed --output docs/results $(BENCH)

wheel: .venv/.installed
	@PYTHON= scripts/wheel.sh dist

format: .venv/.installed-dev
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format

constraints: .venv/.installed-dev
	@scripts/freeze.sh

# Installed anew only where these files are newer. The second environment holds all of the first.
.venv/.installed: pyproject.toml constraints.txt
	@scripts/environment.sh "."
	@touch $@

.venv/.installed-dev: pyproject.toml constraints.txt
	@scripts/environment.sh ".[dev]"
	@touch .venv/.installed $@
