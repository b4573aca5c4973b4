# Everything needs only python3: the first target run makes .venv and installs the project into it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed
PROGRAMS := $(VENV)/installed-programs
DOCS   := $(VENV)/installed-docs
WORKERS = $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')

.PHONY: help setup chat view docs release-check test suite coverage mutation test-model lint ruff types check format bench bench-peers bench-gateways peer-tests clients mcp-clients typescript imports examples browser scale lab-report checklist crash torture torture-long torture-day demo clean
help:  ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# $(call install,EXTRA): what one extra of the project needs, with uv where it is there.
define install
	@command -v uv >/dev/null 2>&1 \
	  && { uv venv --quiet --allow-existing --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(VENV) \
	       && uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[$(1)]'; } \
	  || { $(PYTHON) -m venv $(VENV) \
	       && $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(1)]'; }
endef

# $(call add,EXTRA,MODULE): the same for an extra that few targets need, unless its module is there.
define add
	@$(BIN)/python -c 'import $(2)' 2>/dev/null \
	  || { command -v uv >/dev/null 2>&1 && uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[$(1)]'; } \
	  || $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(1)]'
endef

$(STAMP): pyproject.toml constraints.txt
	$(call install,dev)
	@touch $(STAMP) $(PROGRAMS)

$(PROGRAMS): pyproject.toml constraints.txt
	@echo "setting up .venv, once" >&2
	$(call install,programs)
	@touch $(PROGRAMS)

$(DOCS): pyproject.toml constraints.txt
	$(call install,docs)
	@touch $(STAMP) $(PROGRAMS) $(DOCS)

chat: $(PROGRAMS)  ## Talk to a model; without a key or an account it is a small one on this machine. ARGS='--resume'
	@$(BIN)/holdfast chat $(ARGS)

setup: $(STAMP)  ## Make .venv and install the project with its tools

# What a test starts would else compile the whole package, each time, where this is set.
suite coverage: export PYTHONDONTWRITEBYTECODE =
test: ruff  ## Lint, types and the whole test suite
	@$(MAKE) --no-print-directory -j 2 types suite

# One more than there are cores: some tests wait for programs that they start. Forks are safe on Linux only.
suite: $(STAMP)
	@$(BIN)/python -m pytest $(if $(filter Linux,$(shell uname)),-p scripts.forked_workers --forks $(WORKERS),-n $(WORKERS) --dist worksteal)

coverage: $(STAMP)  ## The suite, measured: how much of each package it runs, and whether that is enough; .coverage has the lines
	$(call add,claude-agent-sdk,claude_agent_sdk)
	@$(BIN)/coverage erase
	@rm -f build/test_times.json
	@$(BIN)/coverage run -m pytest -n auto --dist worksteal -p scripts.covering_tests
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage json --quiet -o - | $(BIN)/python -m scripts.covered

# Runs the suite first, measured, if `make coverage` has not; about an hour on one core. ARGS=--again for survivors only
mutation: $(STAMP)  ## Change the code in 200 small ways; list what no test notices; SEED=1 MUTANTS=200 ARGS=--again
	$(call add,mutation,cosmic_ray)
	@$(BIN)/python -m scripts.mutation --seed $(or $(SEED),1) --mutants $(or $(MUTANTS),200) $(ARGS)

check: lint  ## Lint, types (strict) and architecture
	@$(BIN)/python -m pytest tests/test_architecture.py tests/test_public_api.py

lint: ruff types

ruff: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

# Beside the suite it takes what the tests leave of the processor while they wait.
types: $(STAMP)
	@nice -n 5 $(BIN)/basedpyright --level error

format: $(STAMP)  ## Format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

checklist: $(STAMP)  ## List every behavior of the four systems with the tests that prove it; writes docs/maintainers/checklist.md
	@$(BIN)/python -m scripts.checklist

docs: $(DOCS)  ## Build the documentation into build/docs; a warning, or a link that leads nowhere, is an error
	@$(BIN)/python -m sphinx -W --keep-going -q -b html -d build/doctrees docs build/docs
	@echo "build/docs/index.html"

# An installed copy is tried from the outside, so only its builder comes from .venv. PYTHONS='python3.11 python3.13'
release-check: $(STAMP)  ## Build wheel and sdist; install and try both in fresh environments; PYTHONS='python3.11 python3.13'
	@$(BIN)/python -m scripts.release_check $(PYTHONS)

crash: $(STAMP)  ## Kill a process that writes, and one that compacts, a thousand times; look for every acknowledged message
	@HOLDFAST_KILLS=$(or $(KILLS),1000) $(BIN)/python -m pytest -n auto tests/session/test_crash.py tests/session/test_killed_compaction.py

torture: $(STAMP)  ## Made-up cases on every core, then kills; SECONDS=200 SEED=1
	@$(BIN)/python -m benchmarks.torture --seconds $(or $(SECONDS),200) $(if $(SEED),--seed $(SEED))
	@$(MAKE) --no-print-directory crash KILLS=40

torture-long: $(STAMP)  ## The same for hours: a million cases, fewer of rounds that take longer; 1,000 kills
	@$(BIN)/python -m benchmarks.torture --cases $(or $(CASES),1000000) $(if $(SEED),--seed $(SEED))
	@$(MAKE) --no-print-directory crash

torture-day: $(STAMP)  ## The same for a day, an equal share for each round; HOURS=24 SEED=1
	@$(BIN)/python -m benchmarks.torture --hours $(or $(HOURS),24) $(if $(SEED),--seed $(SEED))
	@$(MAKE) --no-print-directory crash

test-model: $(STAMP)  ## Converse for 200 turns with the embedded model in a window of 2,048 tokens
	@HOLDFAST_MODEL_TURNS=$(or $(TURNS),200) $(BIN)/python -m pytest -s tests/models/test_conversation.py

demo: $(STAMP)  ## Govern a generated 1,000-message session at 16,000 tokens
	@$(BIN)/python examples/01_govern_a_list.py

# The browser is the system's own: Debian's package, installed here where root may, else named.
browser: $(STAMP)  ## The viewer in a real Chromium, with the screenshots of the docs; ONLY='-k export'
	$(call add,browser,axe_playwright_python)
	@command -v chromium chromium-browser google-chrome >/dev/null 2>&1 \
	  || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null 2>&1 && apt-get install -y chromium fonts-inter fonts-noto-cjk fonts-noto-color-emoji; } \
	  || { echo "make browser needs Chromium: install your system's package, such as apt-get install chromium" >&2; exit 2; }
	@HOLDFAST_BROWSER="$$(command -v chromium chromium-browser google-chrome | head -1)" HOLDFAST_SCREENSHOTS=docs/images \
	  $(BIN)/python -m pytest tests/browser $(ONLY)

# PgBouncer is the system's own: Debian's package, installed here where root may, else named.
scale: $(STAMP)  ## Four gateways on one PostgreSQL, killed and restarted under load; DURATION=120 is the short form
	@test -x /usr/sbin/pgbouncer || command -v pgbouncer >/dev/null 2>&1 \
	  || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null 2>&1 && apt-get install -y pgbouncer >/dev/null; } \
	  || { echo "make scale needs PgBouncer: install your system's package, such as apt-get install pgbouncer" >&2; exit 2; }
	@$(BIN)/python -W ignore -m benchmarks.scale.gateways --duration $(or $(DURATION),600)

lab-report: $(STAMP)  ## A report on what each policy keeps, loses and costs; WORKLOADS='a.jsonl b.jsonl', else generated talk
	@$(BIN)/python -m benchmarks.report $(WORKLOADS) -o $(or $(REPORT),lab-report.html)

bench: $(STAMP)  ## Speed compared with peers; WORKLOADS='a.jsonl b.jsonl' adds validity on recorded sessions
	@$(BIN)/python -m benchmarks.prepare $(if $(JSON),--json $(JSON))
	@$(if $(WORKLOADS),$(BIN)/python -m benchmarks.validity $(WORKLOADS))

bench-peers: $(STAMP)  ## Compare with all peers, each in its own environment, and write benchmarks/RESULTS.md; PEERS='langchain agno'
	@$(BIN)/python -m benchmarks.beside $(PEERS) $(if $(PARTS),--only $(PARTS)) $(if $(JSON),--json $(JSON))

bench-gateways: $(STAMP)  ## Recorded coding sessions through our gateway, LiteLLM and headroom; writes RESULTS.md; WORKLOADS='a.jsonl'
	@$(BIN)/python -m benchmarks.gateways $(WORKLOADS)

peer-tests: $(STAMP)  ## The public tests of openai-agents, LangChain and the SDKs, through Holdfast; writes benchmarks/PEER_TESTS.md; SUITES='langchain'
	@$(BIN)/python -m benchmarks.peer_tests $(SUITES)

view: $(PROGRAMS)  ## Open the stored sessions in a browser; ARGS='--from claude-code'
	@$(BIN)/holdfast view $(ARGS)

clients: $(STAMP)  ## Real coding agents through the gateway to an upstream double; HOLDFAST_CLIENTS=FOLDER has them, ONLY=codex,pi, ROUND=budget or kill
	@$(BIN)/python -m benchmarks.clients $(if $(ONLY),--only $(ONLY)) $(if $(ROUND),--round $(ROUND))

mcp-clients: $(STAMP)  ## Claude Code and Codex recall over MCP at the gateway's port; HOLDFAST_CLIENTS=FOLDER, ONLY=codex
	@$(BIN)/python -m benchmarks.clients.mcp_http $(if $(ONLY),--only $(ONLY))

typescript: $(STAMP)  ## The example in TypeScript, compiled with npm's compiler and run by Node against a gateway
	@command -v npm >/dev/null 2>&1 || { echo "make typescript needs Node and npm" >&2; exit 2; }
	@npm install --silent --no-audit --no-fund --prefix $(VENV)/typescript typescript@5 @types/node@20
	@HOLDFAST_TYPESCRIPT=$(VENV)/typescript $(BIN)/python -m pytest tests/gateway/test_typescript.py

imports: $(STAMP)  ## Import what real coding agents wrote, and compare; Codex recalls it over MCP; HOLDFAST_CLIENTS=FOLDER, ONLY=codex,pi
	@$(BIN)/python -m benchmarks.clients.imports $(if $(ONLY),--only $(ONLY))
	@$(BIN)/python -m benchmarks.clients.mcp

examples: $(STAMP)  ## Each adapter's example in a clean environment with only its extra; EXTRAS='langchain google-adk'
	@$(BIN)/python -m scripts.clean_examples $(EXTRAS)

clean:  ## Remove .venv, what peers were installed into, and caches
	@rm -rf $(VENV) .peers .pytest_cache .ruff_cache .hypothesis .coverage* build dist
