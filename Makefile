# Each target makes its own environment first; nothing needs to be installed by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint bench clean

demo: $(READY)            ## train on bundled data, print the comparison, draw figure 1
	$(BIN)/decoupledgp demo --out out

test: $(READY)            ## all tests
	$(BIN)/python -m pytest

lint: $(READY)            ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(READY)           ## every benchmark that prints a number used in the README or docs
	$(BIN)/python -m benchmarks.kin40k
	$(BIN)/python -m benchmarks.step

clean:
	rm -rf $(VENV) out

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)
