# One line per job; `make help` lists them. Needs Python >= 3.11, make and a network or wheel cache.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.safemodule
PIP    := $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt
ARGS   ?=

export PYTHONUNBUFFERED := 1

.PHONY: help env demo test lint docs sweep bench models compat release-check coverage clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

env: $(STAMP)-dev ## create .venv and install the project with its development tools

demo: env ## train the decoder of examples/tsp_decoder.py: fails plain, works safe
	$(PY) examples/tsp_decoder.py $(ARGS)

test: env ## all tests; ARGS="-k view" passes options to pytest
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 $(ARGS)

lint: env ## ruff, formatting, types, and the docs with warnings as errors
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright
	$(VENV)/bin/mypy
	@# every public name has a complete type; it looks at the first Python on PATH
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" pyright --ignoreexternal --verifytypes safemodule \
	  > $(VENV)/verifytypes.log || { cat $(VENV)/verifytypes.log; exit 1; }
	@$(MAKE) --no-print-directory docs

docs: env ## build the documentation into docs/_build/html
	$(PY) -m sphinx -q -n -W --keep-going -b html docs docs/_build/html

sweep: env ## long sweeps over operators, modules and random programs (many minutes)
	$(PY) -m tests.sweep $(ARGS)

bench: $(STAMP)-bench ## run the benchmarks
	$(PY) -m benchmarks $(ARGS)

models: $(STAMP)-models ## compare whole model architectures, guarded against plain
	$(PY) -m tests.models $(ARGS)

compat: ## tests on other torch and Python versions (large downloads); ARGS=--dry-run shows them
	$(PYTHON) tools/compat.py $(ARGS)

release-check: env $(STAMP)-release ## build, check and install the wheel, and test what was installed
	$(PY) tools/release_check.py $(ARGS)

coverage: env ## tests with branch coverage; report in the terminal and in htmlcov/
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --cov --cov-report=term-missing --cov-report=html $(ARGS)

clean: ## remove everything that was built, .venv included
	rm -rf $(VENV) .compat build dist docs/_build htmlcov .coverage .coverage.* \
	  .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(PY):
	@echo "==> creating $(VENV) with $$($(PYTHON) --version)"
	$(PYTHON) -m venv $(VENV)

# The stamps carry the name of an extra: .venv/.safemodule-bench is made by installing .[bench].
$(STAMP)-%: pyproject.toml constraints.txt | $(PY)
	@echo "==> installing safemodule[$*] into $(VENV) (torch is large: this takes a minute or more)"
	@$(PIP) --editable ".[$*]"
	@touch $@
	@echo "==> done"
