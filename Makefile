# Each target does its own set-up: a machine with Python 3.11, pip, make and git is enough.
PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.installed

.PHONY: demo test test-slow test-flower browser bench lint clean

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

# Flower holds back packages that the rest is newer in, so it has an environment of its own.
.venv-flower/.installed: pyproject.toml constraints-flower.txt
	$(PYTHON) -m venv .venv-flower
	.venv-flower/bin/python -m pip install --quiet --constraint constraints-flower.txt --editable ".[flower,rl]" pytest hypothesis
	@touch .venv-flower/.installed

test-flower: .venv-flower/.installed
	.venv-flower/bin/python -m pytest -m 'slow or not slow' tests/flower tests/flower_live

lint: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(SETUP)
	$(BIN)/python benchmarks/engine.py

clean:
	rm -rf .venv .venv-flower build dist runs .mypy_cache .ruff_cache .pytest_cache
