# Each target does its own set-up: a machine with Python 3.11, pip, make and git is enough.
PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.installed

.PHONY: demo studio test test-slow test-flower nginx chromium browser docs wheel bench lint clean torture

$(SETUP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $(SETUP)

# A first look needs no more than this.
.venv/.light: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[report,plot]"
	@touch $@

demo: .venv/.light
	$(BIN)/equipoise compare --task synthetic --methods fedavg,page,autopilot --warmup 20 --seeds 1 --rounds 80 --out runs/demo --overwrite

# The studio with a demo table, from a fresh clone.
.venv/.studio: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[studio,rl]"
	@touch $@

studio: .venv/.studio
	mkdir -p runs/studio-demo
	test -e runs/studio-demo/clinics || $(BIN)/equipoise data sample runs/studio-demo/clinics
	cd runs/studio-demo && ../../$(BIN)/equipoise studio

# A worker for each core; the tests of one file share what they make, so they stay together.
test: lint
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

test-slow: $(SETUP)
	$(BIN)/python -m pytest -m slow

# Debian's Chromium, where it is missing and may be installed; without it the tests in a browser are skipped.
chromium:
	@command -v chromedriver >/dev/null || \
	{ [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install --yes -qq chromium chromium-driver >/dev/null; } || \
	echo "Chromium cannot be installed here (it takes root and apt-get): tests in a browser will be skipped"

# The report and the documentation in a real browser.
browser: $(SETUP) chromium
	$(BIN)/python -m pytest -rs tests/report/test_browser.py tests/docs

# The documentation site, into site/; opens from the disk, without a network.
docs: $(SETUP)
	$(BIN)/python docs/prose.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Flower holds back packages that the rest is newer in, so it has an environment of its own.
.venv-flower/.installed: pyproject.toml constraints-flower.txt
	$(PYTHON) -m venv .venv-flower
	.venv-flower/bin/python -m pip install --quiet --constraint constraints-flower.txt --editable ".[flower-simulation,privacy,data,report,trees]" pytest
	@touch .venv-flower/.installed

# Debian's nginx, where it is missing and may be installed; without it the test of the proxy is skipped.
nginx:
	@command -v nginx >/dev/null || \
	{ [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install --yes -qq nginx-light >/dev/null; } || \
	echo "nginx cannot be installed here (it takes root and apt-get): the test of the proxy will be skipped"

# What does not need Flower is tested by `make test`; this starts real SuperLinks and SuperNodes on 127.0.0.1.
test-flower: .venv-flower/.installed nginx
	timeout --kill-after=60 2400 .venv-flower/bin/python -m pytest -rs -m 'slow or not slow' tests/flower/test_wire.py tests/flower/test_commands.py tests/flower_live

# A source archive and a wheel in dist/, with metadata that the package index accepts.
wheel: $(SETUP)
	rm -rf dist build
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*

lint: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Kill runs at random moments and compare what they come to; then faults at every write, in every way.
torture: $(SETUP)
	PYTHONPATH=tests $(BIN)/python -m trust.torture --kills 2000 --minutes 30
	PYTHONPATH=tests $(BIN)/python -m trust.fuzz --messages 2000000 --minutes 30
	PYTHONPATH=tests $(BIN)/python -m trust.corruption --cases 4000 --minutes 30
	$(BIN)/python -m pytest -m 'slow or not slow' tests/trust

bench: $(SETUP)
	$(BIN)/python -m benchmarks.speed.engine

clean:
	rm -rf .venv .venv-flower build dist runs site .mypy_cache .ruff_cache .pytest_cache
