# make demo    environment, a first training run on the embedded benchmark, scores before and after
# make test    environment with the development extras, linting, types, the whole fast test suite
# make test-all  also the slow tests, and those that need real data when NEARKIN_DATA is set

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

.PHONY: demo test test-all lint format clean

demo: $(VENV)/.runtime
	$(BIN)/nearkin train glyphs/demo --output runs/demo --overwrite --verbose

# One thread per process: the suite's tensors are small, and the processes already share the cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2

test: lint
	$(PYTEST)

test-all: lint
	$(PYTEST) -m "not gpu and ($(if $(NEARKIN_DATA),slow or real_data,slow and not real_data) or not slow and not real_data)"

lint: $(VENV)/.development
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.development
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(BIN)/python:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'nearkin needs Python 3.11 or newer: make PYTHON=python3.12 …')"
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing nearkin into $(VENV) (a minute or two) …"
	$(PIP) --editable .
	@touch $@

$(VENV)/.development: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing nearkin with its development extras into $(VENV) (a few minutes) …"
	$(PIP) --editable ".[dev]"
	@touch $@ $(VENV)/.runtime

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
