# The verbs of this project; `make help` lists them. Each works in a fresh clone with Python 3.11 or newer and make.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# How many processes the tests use; `make test JOBS=0` runs them in one.
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup check format test docs demo bench chaos simulate mutate redis clean

help: ## List the verbs
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' Makefile
	@echo
	@echo '  Options follow in ARGS, for example:'
	@echo '    make demo ARGS="--input conversations.jsonl"      make test ARGS="tests/worker -k lease"'

setup: $(VENV)/.dev ## Make .venv, and install the package with all that development needs

check: $(VENV)/.dev ## Check lint rules, formatting and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright

format: $(VENV)/.dev ## Format the sources
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

test: $(VENV)/.dev ## Run the tests, on servers that they start themselves
	@$(BIN)/pytest -n $(JOBS) $(ARGS)

docs: $(VENV)/.docs ## Build the documentation site in site/; a broken link fails it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

demo: $(VENV)/.demo ## Play conversations on an embedded Valkey, and kill a worker in the middle (INPUT=FILE.jsonl)
	@$(BIN)/antiphon demo $(if $(INPUT),--input '$(INPUT)') $(ARGS)

bench: $(VENV)/.bench ## Measure speed beside other queues, and write plots and pages, in twelve minutes (ARGS=--quick)
	@PYTHONPATH=tests $(BIN)/python -m bench $(ARGS)

chaos: $(VENV)/.dev ## Kill, stop and cut everything at random, then check every promise
	@PYTHONPATH=tests $(BIN)/python -m chaos $(ARGS)

simulate: $(VENV)/.dev ## Run the real scripts under a seeded scheduler, thousands of schedules (SEEDS=20000)
	@PYTHONPATH=tests $(BIN)/python -m simulation $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

mutate: $(VENV)/.dev ## Delete each statement of the scripts in turn; a test must notice
	@PYTHONPATH=tests $(BIN)/python -m mutation $(ARGS)

redis: $(VENV)/.demo ## Start an embedded Valkey and print its URL
	@$(BIN)/antiphon redis $(ARGS)

clean: ## Remove everything that the other verbs have made
	rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .hypothesis

# What is installed is remembered in files of the environment, so that the second time is quick.
$(VENV)/.made:
	@sh .ci/venv $(VENV)
	@touch $@

$(VENV)/.dev $(VENV)/.demo $(VENV)/.bench $(VENV)/.docs: $(VENV)/.%: pyproject.toml | $(VENV)/.made
	@echo "Installing antiphon[$*] into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@ $(if $(filter dev,$*),$(VENV)/.demo)
