# Everything happens in .venv, made on first use from pyproject.toml and constraints.txt.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
WORKERS ?= 2
BIN := .venv/bin
INSTALLED := .venv/installed

.PHONY: help install demo test slow e2e cov check docs stubs bench chaos load soak clean

help:
	@echo 'make demo    a federation of five silos on this machine, over mTLS, on real data'
	@echo 'make test    the tests           make slow   those that take minutes   make e2e   processes and sockets'
	@echo 'make check   format, lint, types, import arrows, stubs, protos, spelling'
	@echo 'make cov     every test with branch coverage'
	@echo 'make docs    links and commands named in the documentation exist'
	@echo 'make stubs   regenerate services/wire/v1 from proto/'
	@echo 'make bench   masking and round benchmarks, one line of JSON each'
	@echo 'make load    200 silos with a certificate and a connection each, on one coordinator'
	@echo 'make soak    200 rounds of 20 silos that vanish in every phase; memory, files and disk must be flat'
	@echo 'make fuzz    every decoder under atheris for FUZZ_SECONDS=60; build/fuzz/ keeps what it found'
	@echo 'make mutation  each check, hashed field and limit of the core altered in turn: a test must miss it; SHORT=1, UPDATE=1'
	@echo 'make chaos   kill processes of a federation and compare its models with a replay; CHAOS="--short" in CI'
	@echo 'make reproduce  published tables, theirs beside ours, 10 min; SHORT=1 two minutes; DATA=../shared/data'
	@echo 'make clean   remove .venv and caches; runs/ stays'

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.version_info >= (3, 11) or sys.exit(f"Python 3.11 or newer is needed, this is {v}: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	# The pip that comes with Python 3.11 knows neither --group nor --build-constraint.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --build-constraint constraints.txt \
		--group test --group check --editable '.[demo,postgres]'
	@touch $@

demo: $(INSTALLED)
	$(BIN)/secagg demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow"

slow: $(INSTALLED)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m slow

e2e: $(INSTALLED)
	$(BIN)/python -m pytest -m e2e

cov: $(INSTALLED)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --cov --cov-report=term

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/generate_stubs.py --check
	$(BIN)/buf lint
	$(BIN)/codespell

docs: $(INSTALLED)
	$(BIN)/python tools/check_docs.py
	$(BIN)/python tools/draw_states.py --check
	$(BIN)/python tools/list_errors.py --check

stubs: $(INSTALLED)
	$(BIN)/python tools/generate_stubs.py

bench: $(INSTALLED)
	$(BIN)/python -m bench masking --json
	$(BIN)/python -m bench round --silos 10 --dim 1000000 --json

# --short: less than three minutes; --random 2000: some hours' worth; --seed N: other victims.
CHAOS ?=

chaos: $(INSTALLED)
	$(BIN)/python tools/chaos.py $(CHAOS)

load: $(INSTALLED)
	$(BIN)/python -m bench.load

SOAK_ROUNDS ?= 200

soak: $(INSTALLED)
	$(BIN)/python -m bench.soak --rounds $(SOAK_ROUNDS)

clean:
	rm -rf .venv .coverage* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist

# Not in the environment of `make install`: atheris is for CPython on Linux and macOS only.
FUZZ_SECONDS ?= 60

.PHONY: fuzz
fuzz: $(INSTALLED)
	$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet atheris==3.0.0
	$(BIN)/python fuzz/fuzz_decoders.py -max_total_time=$(FUZZ_SECONDS)

.PHONY: mutation
mutation: $(INSTALLED)
	$(BIN)/python -m tools.mutation $(if $(SHORT),--short) $(if $(UPDATE),--update)

DATA ?= ../shared/data

.PHONY: reproduce
reproduce: $(INSTALLED)
ifdef SHORT
	$(BIN)/secagg reproduce toy flamby-heart --quick --data-dir $(DATA)
else
	$(BIN)/secagg reproduce toy flamby-heart flamby-tcga --data-dir $(DATA)
	$(BIN)/secagg reproduce scaffold-fashion compression dropouts mcmahan-mnist qffl-adult --quick --data-dir $(DATA)
endif
