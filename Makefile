.DEFAULT_GOAL := help
.PHONY: help demo test test-core torture check docs bench clean
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

help:
	@echo "make demo    train a small CNN on upright digits in three ways, and rotate the test (two minutes)"
	@echo "make test    run the tests, the README and the examples"
	@echo "make test-core  run the tests of the method alone, in less than a minute"
	@echo "make torture  kill it, damage its files, fill its disk: ten minutes, written to docs/reliability.md"
	@echo "make check   formatting, lint, types"
	@echo "make docs    build the documentation as a site, site/index.html"
	@echo "make bench   measure costs, also beside peers, written to docs/benchmarks.md: a quarter of an hour"
	@echo "Each sets up .venv by itself the first time."

demo: .venv/demo
	@$(BIN)/ien demo

test: .venv/ready
	$(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile

# groups, loss, tying, measuring and geometry: what a change to the method needs, in less than a minute
CORE := groups loss tying measuring geometry
test-core: .venv/ready
	$(BIN)/python -m pytest -q -n 2 -m "not slow" $(CORE:%=tests/%) $(CORE:%=src/ien/%)

# everything of tests/torture at full size; make test has a short form of it
torture: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture $(PARTS)

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# the variable silences a notice about the future of mkdocs itself
docs: .venv/docs docs/live.html
	$(BIN)/python docs/commands.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html, or serve it with search: $(BIN)/python -m http.server -d site"

docs/live.html: docs/live.py | .venv/docs
	$(BIN)/python docs/live.py

# PARTS="loss peers" measures these alone
bench: .venv/ready
	$(BIN)/python benchmarks/bench.py $(PARTS)

clean:
	rm -rf .venv

# what the demo needs: the package, and matplotlib for its page
.venv/demo: pyproject.toml constraints.txt
	@echo "Setting up .venv, once: PyTorch (most of it) and matplotlib, 1.3 GB on disk; a minute or two."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(INSTALL) -e ".[plots]"
	@touch $@

# and the rest: what the tests compare with, a browser driver, linters
.venv/ready: .venv/demo
	@echo "Adding what the tests need to .venv: another 0.7 GB, once."
	@$(INSTALL) -e ".[dev,plots,track]"
	@touch $@

# and the documentation: mkdocs and what it reads docstrings with
.venv/docs: .venv/ready
	@echo "Adding what the documentation needs to .venv, once."
	@$(INSTALL) -e ".[docs]"
	@touch $@
