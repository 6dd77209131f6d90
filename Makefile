PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check bench clean

# One virtual environment for everything; the stamp files say what is installed in it.
$(VENV)/stamp: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/stamp-test: pyproject.toml $(VENV)/stamp
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

demo: $(VENV)/stamp
	$(BIN)/dpdask calibrate docs/examples/mvg.yaml
	$(BIN)/dpdask compare --epsilon 1 --delta 1e-5 --shape 1000x100 --l2-sensitivity 1

check: $(VENV)/stamp-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check
	$(BIN)/python -m pytest

$(VENV)/stamp-bench: pyproject.toml $(VENV)/stamp-test
	$(BIN)/python -m pip install --quiet --editable '.[test,bench]'
	touch $@

bench: $(VENV)/stamp-bench
	$(BIN)/python -m tests.bench.bench

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
