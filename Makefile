# make demo    environment, a first training run on the embedded benchmark, scores before and after, a search over unseen kinds
# make test    environment with the development extras, linting, types, the whole fast test suite
# make test-all  also the slow tests, and those that need real data when NEARKIN_DATA is set
# make coverage  which branches of src the fast suite takes
# make mutants MODULE=losses  which changes of a module or package its tests do not notice
# make test-oldest    the numerical part of the suite with the oldest instructions and four threads, as every commit is tested
# make test-portable  the same under six combinations of instructions and threads
# make docs    the documentation as a site that opens from the disk: build/docs/index.html
# make test-lowest    the suite with the lowest versions that pyproject.toml allows
# make release-check  wheel and sdist built, and the quick start gone through with the wheel alone
# make results, make licences  write the tables of README.md and docs/results.md from results/, and docs/licences.md from what is installed

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
LOG    := $(VENV)/install.log
LOGGED := > $(LOG) 2>&1 || { tail -n 20 $(LOG); echo "The installation failed; all that pip said is in $(LOG)"; exit 1; }

.PHONY: added coverage demo docs mutants test test-all test-lowest test-oldest test-portable release-check results licences lint format clean

demo: $(VENV)/.runtime
	$(BIN)/nearkin train glyphs/demo --output runs/demo --overwrite --verbose
	@rm -rf runs/demo.index
	$(BIN)/nearkin index runs/demo --test-images --output runs/demo.index --verbose
	@echo "Open the gallery: $(BIN)/nearkin serve runs/demo.index"

# One thread per process: the suite's tensors are small, and the processes already share the cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2

test: lint
	$(PYTEST)

test-all: lint
	$(PYTEST) -m "not gpu and ($(if $(NEARKIN_DATA),slow or real_data,slow and not real_data) or not slow and not real_data)"

coverage: $(VENV)/.development
	rm -rf .coverage && mkdir .coverage
	OMP_NUM_THREADS=1 $(BIN)/python -m coverage run -m pytest --numprocesses 2
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --sort=cover --skip-covered

SAMPLE ?= 60
mutants: $(VENV)/.development
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutants $(MODULE) --sample $(SAMPLE)

# What computes, under other instruction sets and numbers of threads, with parameters a last bit away where a test pins
# values. MKL_CBWR and OPENBLAS_CORETYPE do for matrix products what ATEN_CPU_CAPABILITY does for torch's own loops.
# Threads that sleep while they wait: with more of them than cores, spinning takes five times as long.
NUMERICAL := tests/contracts tests/data/test_transforms.py tests/encoders tests/evaluation tests/runs/test_export.py tests/index tests/losses tests/training/methods \
	tests/proxies tests/samplers tests/test_numerics.py tests/training \
	src/nearkin/encoders src/nearkin/evaluation src/nearkin/losses src/nearkin/numerics.py src/nearkin/proxies
OLDEST := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE OPENBLAS_CORETYPE=Nehalem
AVX2   := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=AVX2 OPENBLAS_CORETYPE=Haswell
PORTABLE = $(1) OMP_NUM_THREADS=$(2) OMP_WAIT_POLICY=PASSIVE NEARKIN_TEST_NUDGE=$(3) $(BIN)/python -m pytest --numprocesses 2 $(NUMERICAL)

test-oldest: $(VENV)/.development
	$(call PORTABLE,$(OLDEST),4,2)

test-portable: test-oldest
	$(call PORTABLE,$(OLDEST),1,1)
	$(call PORTABLE,$(AVX2),1,3)
	$(call PORTABLE,$(AVX2),4,4)
	$(call PORTABLE,,1,5)
	$(call PORTABLE,,4,6)

# What a new loss, method, backbone, score or recipe needs beside its file: golden curve and row in the docs.
added: $(VENV)/.development
	$(BIN)/python -m pytest tests/contracts/test_golden_curves.py --add-golden
	for page in losses methods backbones scores plots recipes; do $(BIN)/nearkin list $$page --markdown > docs/$$page.md || exit 1; done
	$(BIN)/nearkin list keys --markdown > docs/recipe_keys.md
	$(BIN)/python docs/write_commands.py > docs/commands.md

docs: $(VENV)/.development
	$(BIN)/python -m sphinx -q -W --keep-going docs build/docs
	@echo "Open build/docs/index.html"

# Packages whose lowest version cannot be had go into BUT: make test-lowest BUT=torch. TESTS says what to run.
test-lowest: $(VENV)/.development
	OMP_NUM_THREADS=1 $(BIN)/python tools/lowest.py $(if $(BUT),--but $(BUT)) -- --numprocesses 2 $(TESTS)

release-check: | $(BIN)/python
	$(BIN)/python tools/release_check.py

results: $(VENV)/.development
	$(BIN)/python tools/results.py

licences: $(VENV)/.development
	$(BIN)/python tools/licences.py

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
	@$(PIP) --editable ".[serve]" $(LOGGED)
	@touch $@

$(VENV)/.development: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing nearkin with its development extras into $(VENV) (a few minutes) …"
	@$(PIP) --editable ".[dev]" $(LOGGED)
	@touch $@ $(VENV)/.runtime

clean:
	rm -rf $(VENV) $(VENV)-lowest build .coverage .mypy_cache .pytest_cache .ruff_cache
