# Two commands: `make demo` and `make test`. Both make .venv when it is not there. PYTHON=python3.12 picks another Python.
PYTHON ?= python3
BIN := .venv/bin
APP := .venv/.app
DEV := .venv/.dev
COMPILED := benchmarks/results/compile_only.jsonl
PIP_INSTALL := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-compile lint types clean

demo: $(APP)
	OMP_NUM_THREADS=1 $(BIN)/flashheat demo  # matrices this small are slower on several threads

test: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not gpu" -n 2

test-compile: $(DEV)
	$(BIN)/python -m tests.compile_only $(COMPILED)
	$(BIN)/pip download --quiet --no-deps --dest .venv/older triton==3.6.0
	cd .venv/older && $(PYTHON) -m zipfile -e triton-3.6.0-*.whl . && chmod +x triton/backends/nvidia/bin/*
	PYTHONPATH=.venv/older $(BIN)/python -m tests.compile_only .venv/older/log.jsonl
	cat .venv/older/log.jsonl >> $(COMPILED)

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

clean:
	rm -rf .venv dist site
