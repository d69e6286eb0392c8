# `make demo` and `make test` need nothing but a clone, Python 3.11 or newer, and a network.
# Variables that may be given on the command line:
#   PYTHON=python3.12       which Python builds the environment
#   VENV=.venv              folder of the environment
#   EXTRAS=dev,docs,peers   which of pyproject.toml's extras are installed
#   WORKERS=4               how many tests run at once, on one thread each
#   ARGS="-k clipping"      more arguments for pytest
#   KILLS=1000              how many times `make torture` kills a run

SHELL := /bin/sh
.DEFAULT_GOAL := help
PYTHON :=
VENV := .venv
EXTRAS := dev,docs
WORKERS := 2
ARGS :=
KILLS := 1000

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# What the stamp says: a moved or copied clone, or other extras, call for another install.
STATE := $(CURDIR) [$(EXTRAS)]

ifneq ($(shell $(BIN)/python -SEc "print(open('$(STAMP)').read())" 2>/dev/null),$(STATE))
STALE := stale
endif

.PHONY: help demo test test-all torture lint docs format wheel clean distclean setup stale

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(STAMP) ## fine-tune the bundled tiny model with privacy: no download of data or weights, no GPU
	$(BIN)/dpft demo

test: $(STAMP) ## run the tests that are not slow; the ones on real data need DPFT_DATA=<folder>
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" $(ARGS)

test-all: $(STAMP) ## run all tests: those of compilers, Java, packages, torture and many ranks too
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

torture: $(STAMP) ## kill runs 1,000 times and compare them with unbroken ones (KILLS=...); about an hour
	$(BIN)/python -m tests.torture --kills $(KILLS)

lint: $(STAMP) ## check size (budget.toml), style (ruff), types (mypy), imports, and what can be deleted
	$(BIN)/python scripts/budget.py
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/leaves.py

docs: $(STAMP) ## build the site of docs/ into build/site, offline; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

format: $(STAMP) ## rewrite the code in the house style
	$(BIN)/python -m ruff check --fix-only .
	$(BIN)/python -m ruff format .

wheel: $(STAMP) ## build the sdist and the wheel into dist/
	$(BIN)/python -m hatchling build -d dist -t sdist -t wheel

setup: $(STAMP) ## build the environment only; every other target does so when it has to

clean: ## remove what was built and cached; runs and the environment stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find conf docs dpft scripts tests -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## remove the environment too
	rm -rf $(VENV)

stale:

PYTHONS := $(or $(PYTHON),python3.11 python3.12 python3.13 python3.14 python3 python)

$(STAMP): pyproject.toml constraints.txt $(STALE)
	@$(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && exit; \
	found=; \
	for candidate in $(PYTHONS); do \
	    version=$$($$candidate -c 'import platform; print(platform.python_version())' 2>/dev/null) || continue; \
	    if $$candidate -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "$$candidate ($$version) builds the environment in $(VENV)"; \
	        exec $$candidate -m venv --clear $(VENV); \
	    fi; \
	    found="$$found $$candidate is $$version;"; \
	done; \
	echo "error: dpft needs Python 3.11 or newer with its venv and ensurepip modules." >&2; \
	echo "  looked for: $(PYTHONS)" >&2; \
	echo "  found:      $${found:-none of them}" >&2; \
	echo "  next:       install one (Debian, Ubuntu: python3.11 and python3.11-venv)," >&2; \
	echo "              or say where it is: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; \
	exit 1
	@echo "installing dpft and what it needs into $(VENV): about five minutes the first time"
# Modules are compiled as they are imported: all of them would take more than a minute, most for nothing.
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-compile -c constraints.txt -e ".[$(EXTRAS)]"
	@printf '%s' '$(STATE)' > $@
