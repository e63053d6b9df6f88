# Set-up makes .venv in the checkout; every other target starts from it.
PYTHON ?= python3
PY := .venv/bin/python
# smollm2.py measures nothing: it makes models out of a file that it is given.
BENCHMARKS := $(filter-out %/smollm2.py,$(wildcard benchmarks/*.py kernels/benchmarks/bench_*.py))
CONSTRAINTS := $(if $(shell nvidia-smi -L 2>/dev/null),,-c constraints.txt)

.PHONY: setup vllm-env demo test test-fast check bench docs clean

setup: .venv/installed

.venv/installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --disable-pip-version-check $(CONSTRAINTS) -e '.[all,dev]'
	touch $@

vllm-env:
	$(PYTHON) tests/server/make_vllm_env.py

demo: setup
	.venv/bin/pairgate demo

test: setup
	$(PY) -m pytest

test-fast: setup
	$(PY) -m pytest -m 'not slow'

check: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/lint-imports
	$(PY) docs/generate_cli.py --check

docs: setup
	$(PY) docs/generate_cli.py

bench: setup
	set -e; for script in $(BENCHMARKS); do $(PY) $$script; done

clean:
	rm -rf .venv .demo build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
