# Two commands: `make demo` and `make test`. Both make .venv when it is not there. PYTHON=python3.12 picks another Python.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test test-compile lint types clean

demo: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/flashheat demo  # matrices this small are slower on several threads

test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "not gpu and not compile" -n 2

test-compile: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m compile -n 2

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $(INSTALLED)

clean:
	rm -rf .venv dist site
