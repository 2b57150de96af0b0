# Two commands: `make demo` and `make test`. Both make .venv when it is not there. PYTHON=python3.12 picks another Python.
PYTHON ?= python3
TORCH ?= 2.14.1
BIN := .venv/bin
APP := .venv/.app
DEV := .venv/.dev
DOCS := .venv/.docs
COMPILED := benchmarks/results/compile_only.jsonl
PIP_INSTALL := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-matrix test-compile docs lint types clean

demo: $(APP)
	OMP_NUM_THREADS=1 $(BIN)/flashheat demo  # matrices this small are slower on several threads

test: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not gpu" -n 2

test-matrix:  # on another torch than that of constraints.txt, with the triton that it asks for
	$(PYTHON) -m venv .venv-matrix
	grep -v -e '^torch==' -e '^triton==' constraints.txt > .venv-matrix/constraints.txt
	.venv-matrix/bin/pip install --quiet --constraint .venv-matrix/constraints.txt torch==$(TORCH) --editable ".[dev]"
	OMP_NUM_THREADS=1 .venv-matrix/bin/pytest -m "not gpu" -n 2

test-compile: $(DEV)
	$(BIN)/python -m tests.compile_only $(COMPILED)
	$(BIN)/pip download --quiet --no-deps --dest .venv/older triton==3.6.0
	cd .venv/older && $(PYTHON) -m zipfile -e triton-3.6.0-*.whl . && chmod +x triton/backends/nvidia/bin/*
	PYTHONPATH=.venv/older $(BIN)/python -m tests.compile_only .venv/older/log.jsonl
	cat .venv/older/log.jsonl >> $(COMPILED)

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # --quiet would hide warnings from --strict too

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/mypy

$(APP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP_INSTALL) --editable ".[app]"
	touch $(APP)

$(DEV): $(APP)
	$(PIP_INSTALL) --editable ".[dev]"
	touch $(DEV)

$(DOCS): $(APP)
	$(PIP_INSTALL) --editable ".[docs]"
	touch $(DOCS)

clean:
	rm -rf .venv .venv-matrix dist site
