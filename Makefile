# Two commands: `make demo` and `make test`. Both make .venv when it is not there. PYTHON=python3.12 picks another Python.
PYTHON ?= python3
BIN := .venv/bin
APP := .venv/.app
DEV := .venv/.dev
PIP_INSTALL := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-compile lint types clean

demo: $(APP)
	OMP_NUM_THREADS=1 $(BIN)/flashheat demo  # matrices this small are slower on several threads

test: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not gpu and not compile" -n 2

test-compile: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m compile -n 2

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
