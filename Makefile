# Two commands for a newcomer: make demo, make test. Each sets up .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint types contract unit soak clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all,dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: lint types contract unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

contract: $(STAMP)
	$(BIN)/lint-imports

unit: $(STAMP)
	$(BIN)/python -m pytest

# The long form of the proofs that `make test` holds in short.
soak: $(STAMP)
	SHOESTRING_SOAK=1 $(BIN)/python -m pytest tests/invariants tests/crash

clean:
	rm -rf $(VENV) runs
