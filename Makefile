# Each target does its own set-up: a machine with Python 3.11, pip, make and git is enough.
PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.installed

.PHONY: demo test test-slow browser bench lint clean

$(SETUP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $(SETUP)

demo: $(SETUP)
	$(BIN)/equipoise compare --task synthetic --methods fedavg,page,equilibrium --warmup 20 --seeds 1 --rounds 80 --out runs/demo --overwrite

test: lint
	$(BIN)/python -m pytest

test-slow: $(SETUP)
	$(BIN)/python -m pytest -m slow

# The report in a real browser; installs Debian's Chromium where it is missing (as root).
browser: $(SETUP)
	command -v chromedriver >/dev/null || apt-get install --yes chromium chromium-driver
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[browser]"
	$(BIN)/python -m pytest tests/report/test_browser.py

lint: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(SETUP)
	$(BIN)/python benchmarks/engine.py

clean:
	rm -rf .venv build dist runs .mypy_cache .ruff_cache .pytest_cache
