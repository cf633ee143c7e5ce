# Start with `make demo` or `make test`. Both install everything into .venv first.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest $(PYTEST_ARGS)
# One process more than there are cores, since some tests wait. Files keep their order: pytest-xdist would
# start with the files of many tests, so whole runs would come last and the other processes would idle.
WORKERS := -n $(shell expr $$(nproc) + 1) --maxprocesses 5 --dist loadfile --no-loadscope-reorder

# Tests start hundreds of interpreters, and each would compile Laggard anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo test test-all verify docs lint types unit long schemas freeze clean

help:
	@echo 'make demo      install, run the quickstart, print the path of the report'
	@echo 'make test      install, lint, type-check, run the short tests (minutes)'
	@echo 'make test-all  make test, then the long tests: whole runs, testbeds, kernels, faults'
	@echo 'make verify    measure how exactly this machine emulates'
	@echo 'make docs      build the documentation site in build/site'
	@echo 'make freeze    write the installed versions to constraints.txt'
	@echo 'make schemas   regenerate the JSON Schemas of the scenario files'

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt install.sh
	@PYTHON=$(PYTHON) ./install.sh

demo: install
	@$(BIN)/laggard demo || [ $$? -eq 3 ]  # 3: out of tolerance, as the report states

test: lint types unit

test-all: test long

verify: install
	$(BIN)/laggard verify

docs: install
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'open build/site/index.html'

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy --num-workers auto

unit: install
	$(PYTEST) $(WORKERS) -m "not long"

# More processes than cores, since these tests often wait for emulated machines.
long: install
	$(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder -m long

schemas: install
	$(BIN)/python -m laggard.scenario.json_schemas

freeze: install
	@{ echo '# Exact versions that are tested together. After a deliberate change: make freeze, make test, commit.'; \
	   $(BIN)/pip freeze --all --exclude-editable | grep -viE '^(laggard|pip)==' | sed 's/+cpu$$//'; } > constraints.txt

clean:
	rm -rf .venv build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
