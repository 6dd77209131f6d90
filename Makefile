PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo check test-fast test bench clean

# One virtual environment for everything; the stamp files say what is installed in it.
$(VENV)/stamp: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[flows,xarray]'
	touch $@

$(VENV)/stamp-test: pyproject.toml $(VENV)/stamp
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

demo: $(VENV)/stamp
	$(BIN)/dpdask demo --flow

check: $(VENV)/stamp-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/check_words.py

test-fast: $(VENV)/stamp-test
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow' tests/unit

test: check
	$(BIN)/python -m pytest -n 2 --dist loadfile --ignore tests/flows
	$(BIN)/python -m pytest tests/flows  # one Prefect server at a time

$(VENV)/stamp-bench: pyproject.toml $(VENV)/stamp-test
	$(BIN)/python -m pip install --quiet --editable '.[test,bench]'
	touch $@

bench: $(VENV)/stamp-bench
	rm -f build/bench.json
	$(BIN)/python -m tests.bench.start
	$(BIN)/python -m tests.bench.bench
	$(BIN)/python -m tests.bench.release
	$(BIN)/python -m tests.bench.queries
	$(BIN)/python -m tests.bench.real_data
	$(BIN)/python -m tests.bench.people
	$(BIN)/python -m tests.bench.ledger
	$(BIN)/python -m tests.bench.table docs/performance.md

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
