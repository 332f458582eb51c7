# `make help` lists the targets. Everything happens in .venv; nothing else on the machine is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install demo test quick proofs fuzz kill crash check format docs docs-serve dist dist-check clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

install: $(VENV)/.installed ## create .venv and install bertree into it

demo: $(VENV)/.installed ## the whole path on the data in this repository
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash demo/run.sh

# Several processes of one thread each: tiny models spend a second thread on waiting. Neighbouring tests stay together until
# a process runs out of work and takes half of what another has left; the longest come first
# (tests/conftest.py). Compiled files are kept, whatever the environment says: the tests start many interpreters.
# What a test wrote is removed unless it failed, before it reaches the disk.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist worksteal -o tmp_path_retention_policy=failed

test: $(VENV)/.installed-dev ## run the test suite
	$(PYTEST) -n auto --maxprocesses 4 $(ARGS)

quick: $(VENV)/.installed-test ## run the fast tests: no processes, training, compiling, real weights or other libraries
	$(PYTEST) -n auto --maxprocesses 2 --quick $(ARGS)

proofs: $(VENV)/.installed-dev ## run the tests of more families, meshes, moments and examples, of which `make test` has a few
	$(PYTEST) -n auto --maxprocesses 4 --proofs -m "proof or hypothesis" $(ARGS)

SECONDS ?= 60
fuzz: $(VENV)/.installed-dev ## run bertree on damaged files and odd commands for SECONDS=60; ARGS="--help" tells more
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(ARGS)

COUNT ?= 20
kill: $(VENV)/.installed-dev ## kill every verb that writes, COUNT times and at its file operations, and resume
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.kill --count $(COUNT) $(ARGS)

WHAT ?= cuts
crash: $(VENV)/.installed-dev ## cut the power at the file operations of every verb that writes; WHAT=errors, WHAT=beside
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.crash $(WHAT) $(ARGS)

check: $(VENV)/.installed-lint ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-lint ## put the code into its format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-docs ## build the documentation site into site/; a broken link is an error
	$(BIN)/python -m docs.build

PORT ?= 8000
docs-serve: docs ## build the site and show it on http://127.0.0.1:8000; PORT=9000
	$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory site

dist: $(VENV)/.installed-release ## build wheel and source distribution of HEAD into dist/: the same bytes every time
	$(BIN)/python deploy/dist.py $(ARGS)

dist-check: dist ## install the wheel into an empty environment and run the first minute, a pretraining, a server
	PYTHON="$(PYTHON)" deploy/dist-check.sh

clean: ## remove .venv, the site, dist and everything the demo wrote
	rm -rf $(VENV) demo-out site dist

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "bertree needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { echo "python3 has no venv module: on Debian and Ubuntu, apt install python3-venv"; exit 2; }

# torch first and pinned: left to itself, pip would take the newest release with gigabytes of CUDA packages.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing bertree into $(VENV) (the first time takes a few minutes)"
	@$(PIP) "$$(grep '^torch==' constraints.txt)"
	@$(PIP) -e .
	@touch $@

# An extra of pyproject.toml: lint, test, docs, release, peers, benchmarks, or dev, which is all of them.
$(VENV)/.installed-%: $(VENV)/.installed
	@echo "installing the extra $*"
	@$(PIP) -e '.[$*]'
	@touch $@
