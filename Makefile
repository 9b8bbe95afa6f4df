# The verbs of this project; `make help` lists them. Each works in a fresh clone with Python 3.11 or newer and make.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
NODE := client/node
ARGS ?=
# How many processes the tests use: more than there are cores, because most tests wait. `make test JOBS=0` runs them in one.
JOBS ?= 4
# Frameworks, stores and clients that our adapters and interfaces are tested with, always their newest release.
NEIGHBOURS := openai-agents langchain-core langchain-tests langgraph langgraph-checkpoint-conformance llama-index-core pydantic-ai-slim \
  langchain-openai langchain-elasticsearch langchain-pinecone langchain-postgres langchain-redis pinecone openai anthropic ag-ui-protocol a2a-sdk

.DEFAULT_GOAL := help
.PHONY: help setup check format test test-all sealed clients mcp neighbours node docs demo bench sizing chaos upgrade simulate mutate mutate-python wire interfaces pins release redis sync chart clean

help: ## List the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile
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

test: $(VENV)/.dev ## Run the tests in five minutes: all but those that start processes, of which it runs the main paths
	@$(BIN)/pytest -n $(JOBS) -m "not nightly" $(ARGS)

test-all: $(VENV)/.dev ## Run every test, on each kind of Redis server that is installed
	@$(BIN)/pytest -n $(JOBS) --server all $(ARGS)

sealed: $(VENV)/.dev ## Run the tests of sessions on workers again, with encryption at rest
	@$(BIN)/pytest -n $(JOBS) --sealed tests/client/session -k redis $(ARGS)

clients: $(VENV)/.clients $(VENV)/.dev ## Run the official JavaScript clients against the gateway; npm installs them first
	@$(BIN)/pytest -n 0 -k official tests/gateway $(ARGS)

mcp: $(VENV)/.mcp $(VENV)/.dev ## Run the official conformance suite of MCP, and servers of others; npm and pip install them first
	@$(BIN)/pytest -n $(JOBS) tests/worker/mcp/test_official.py tests/gateway/test_mcp_official.py $(ARGS)

neighbours: $(VENV)/.dev ## Test the adapters on the frameworks' newest releases, with the suites that these publish
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade $(NEIGHBOURS)
	@for name in $(NEIGHBOURS); do $(BIN)/python -m pip index versions "$$name" 2>/dev/null | awk -v name="$$name" \
	  '/INSTALLED:/ {has = $$2} /LATEST:/ && $$2 != has {print "Not the newest release: " name " " has ", because requirements exclude " $$2}'; done
	@rm -f $(VENV)/.neighbours && $(MAKE) --no-print-directory $(VENV)/.neighbours
	@$(BIN)/pytest -n $(JOBS) tests/ext tests/worker/memory tests/client/wire/test_script_conversations.py tests/test_packaging.py \
	  tests/gateway/test_clients_in_python.py tests/gateway/test_ag_ui.py tests/gateway/test_a2a.py tests/worker/test_a2a.py tests/worker/providers/test_fields.py $(ARGS)

node: $(VENV)/.dev $(NODE)/node_modules/.package-lock.json $(NODE)/test/runtime/node_modules/.package-lock.json ## Test the package for Node, on Node 24 and servers that it kills
	@PATH="$$(echo $(CURDIR)/$(NODE)/test/runtime/node_modules/node-*/bin):$$PATH" npm --prefix $(NODE) test -- $(ARGS)

docs: $(VENV)/.docs ## Build the documentation site in site/; a broken link fails it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

demo: $(VENV)/.demo ## Play conversations on an embedded Valkey, and kill a worker in the middle (INPUT=FILE.jsonl)
	@$(BIN)/antiphon demo $(if $(INPUT),--input '$(INPUT)') $(ARGS)

bench: $(VENV)/.bench ## Measure speed beside other queues, and write plots and pages, in fifteen minutes (ARGS=--quick)
	@TEST_FORKS=no PYTHONPATH=tools:tests $(BIN)/python -m bench $(ARGS)

sizing: $(VENV)/.bench ## Compute what a deployment needs, from the figures of the benchmark (ARGS="--streams 250000")
	@PYTHONPATH=tools:tests $(BIN)/python -m sizing $(ARGS)

chaos: $(VENV)/.dev ## Kill, stop and cut everything at random, then check every promise
	@TEST_FORKS=no PYTHONPATH=tools:tests $(BIN)/python -m chaos $(ARGS)

upgrade: $(VENV)/.dev ## Roll hosts between the release before this one and this one, while everything breaks
	@TEST_FORKS=no PYTHONPATH=tools:tests $(BIN)/python -m upgrade $(ARGS)

simulate: $(VENV)/.dev ## Run the real scripts under a seeded scheduler, thousands of schedules (SEEDS=20000)
	@PYTHONPATH=tools:tests $(BIN)/python -m simulation $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

mutate: $(VENV)/.dev ## Delete each statement of the scripts in turn; a test must notice (ARGS="--statements 200")
	@PYTHONPATH=tools:tests $(BIN)/python -m mutation $(ARGS)

mutate-python: $(VENV)/.dev ## Change random Python statements of the core; a test must notice (ARGS="--statements 200 --seed 7")
	@PYTHONPATH=tools:tests $(BIN)/python -m mutation.python $(ARGS)

wire: $(VENV)/.dev ## Freeze what is new of what releases share in Redis; a change that harms an older one is refused
	@PYTHONPATH=tools:tests $(BIN)/python -m support.frozen_wire

interfaces: $(VENV)/.dev ## Write the types for Node and the tables of the docs that come from the declared operations and options
	@PYTHONPATH=tests $(BIN)/python tools/interfaces.py $(ARGS)

chart: $(VENV)/.dev ## Write the Helm chart from the manifests in deploy/kubernetes
	@$(BIN)/python tools/chart.py $(ARGS)

sync: $(VENV)/.dev ## Generate the synchronous client (Session, Client, …) from the asynchronous one
	@$(BIN)/python tools/async_to_sync.py $(ARGS)

pins: $(VENV)/.dev $(VENV)/tools/.made ## Pin the packages of the image anew, with their hashes
	@PYTHONPATH=tools:tests $(BIN)/python -m release.pins

release: $(VENV)/.dev $(VENV)/tools/.made ## Build wheel, source and SBOM into dist/, and try them in empty environments
	@PYTHONPATH=tools:tests $(BIN)/python -m release

redis: $(VENV)/.demo ## Start an embedded Valkey and print its URL
	@$(BIN)/antiphon redis $(ARGS)

clean: ## Remove everything that the other verbs have made
	rm -rf $(NODE)/node_modules $(NODE)/test/runtime/node_modules
	rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .hypothesis

# The versions are those of the lock. `node` among them is the Node that the clients run on.
$(VENV)/.clients: tests/clients/package-lock.json | $(VENV)/.made
	@mkdir -p $(VENV)/clients && cp tests/clients/package.json tests/clients/package-lock.json $(VENV)/clients/
	@npm ci --prefix $(VENV)/clients --no-audit --no-fund --loglevel error
	@touch $@

$(VENV)/.mcp: tests/mcp/package-lock.json tests/mcp/requirements.txt | $(VENV)/.made
	@mkdir -p $(VENV)/mcp && cp tests/mcp/package.json tests/mcp/package-lock.json $(VENV)/mcp/
	@npm ci --prefix $(VENV)/mcp --no-audit --no-fund --loglevel error
	@sh .ci/venv $(VENV)/mcp/python
	@$(VENV)/mcp/python/bin/python -m pip install --quiet --disable-pip-version-check -r tests/mcp/requirements.txt
	@touch $@

# The tests that a framework publishes are in its source distribution: that of the release that is installed.
$(VENV)/.neighbours: $(VENV)/.dev
	@rm -rf $(VENV)/neighbours && mkdir -p $(VENV)/neighbours
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest $(VENV)/neighbours \
	  "openai-agents==$$($(BIN)/python -c 'from importlib.metadata import version; print(version("openai-agents"))')"
	@for archive in $(VENV)/neighbours/*.tar.gz; do tar -xzf "$$archive" -C $(VENV)/neighbours; done
	@touch $@

$(VENV)/tools/.made: pyproject.toml | $(VENV)/.made
	@sh .ci/venv $(VENV)/tools
	@$(VENV)/tools/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[release]'
	@touch $@

# What is installed is remembered in files of the environment, so that the second time is quick.
$(VENV)/.made:
	@sh .ci/venv $(VENV)
	@touch $@

$(VENV)/.dev $(VENV)/.demo $(VENV)/.bench $(VENV)/.docs: $(VENV)/.%: pyproject.toml demo/pyproject.toml | $(VENV)/.made
	@echo "Installing antiphon[$*] into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]' $(if $(filter-out docs,$*),--editable demo)
	@touch $@ $(if $(filter dev,$*),$(VENV)/.demo)

$(NODE)/node_modules/.package-lock.json: $(NODE)/package-lock.json
$(NODE)/test/runtime/node_modules/.package-lock.json: $(NODE)/test/runtime/package-lock.json
$(NODE)/node_modules/.package-lock.json $(NODE)/test/runtime/node_modules/.package-lock.json:
	@echo "Installing what $(dir $<)package-lock.json names"
	@npm ci --silent --no-audit --no-fund --prefix $(dir $<)
	@touch $@
