# Two commands: `make demo` and `make test`. Both install into .venv first, from nothing.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test lint types unit install freeze schemas clean

help:
	@echo 'make demo     install, run experiments/quickstart, say where the report is'
	@echo 'make test     install, lint, type-check, run every test'
	@echo 'make freeze   write constraints.txt from what is installed'
	@echo 'make schemas  regenerate the JSON Schemas of the scenario files'

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "Laggard needs Python 3.11 to 3.13, and $(PYTHON) is another: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
		{ echo "this Python has no venv module: on Debian, apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --disable-pip-version-check --no-input -c constraints.txt -e '.[dev]'
	touch $@

demo: install
	$(BIN)/laggard run experiments/quickstart

test: lint types unit

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

PYTEST := $(BIN)/python -m pytest $(PYTEST_ARGS)
# $(1) which tests, $(2) how many at once. What fails is run once more by itself, since neighbours disturb it, of the suite or of a shared machine: who fails twice fails.
TWICE = $(PYTEST) -m $(1) $(2) || { [ $$? -eq 1 ] && $(PYTEST) -m $(1) --last-failed --last-failed-no-failures none; }

# In four parts: tests that may share the machine, on one process more than there are cores, since some wait; kernels of one
# virtual processor each, two at once; whole runs on stand-in machines, which wait for most of their minutes, two at once too; and
# what is not to be disturbed, one after the other.
unit: install
	$(call TWICE,"not alone and not uml and not remote",-n $(shell expr $$(nproc) + 1) --maxprocesses 5)
	$(call TWICE,uml,-n 2)
	$(call TWICE,remote,-n 2)
	$(call TWICE,"alone and not uml")

schemas: install
	$(BIN)/python -m laggard.scenario.json_schemas

freeze: install
	@{ echo '# Exact versions that are tested together. After a deliberate change: make freeze, make test, commit.'; \
	   $(BIN)/pip freeze --all --exclude-editable | grep -viE '^(laggard|pip)==' | sed 's/+cpu$$//'; } > constraints.txt

clean:
	rm -rf .venv build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
