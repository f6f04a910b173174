# Two commands do everything, set-up included: `make verify` and `make test`.
# They need Python 3.11 or newer, pip and make; everything else goes into .venv.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
AGENTS := .venv-agents/bin
GALLERY := .venv-gallery/bin
ORACLE_PACKAGES := spin gcc libc6-dev default-jre-headless

.DEFAULT_GOAL := help

.PHONY: help setup verify test docs reference report deep agents editors gallery galleryhistory agentgallery matrix sabotage mutants coverage bench chaos soundness lint diagrams play vectors ports oracles prove clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "turngate needs Python 3.11 or newer; say which with: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[verify]' --group dev
	@touch $(READY)

setup: $(READY) ## make .venv with the project and its tools

verify: setup ## the main job: check every promise, refute every known-bad design
	$(BIN)/turngate verify

test: setup ## the test suite
	$(BIN)/pytest -n auto --dist worksteal

.venv-docs/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	.venv-docs/bin/python -m pip install --quiet --group docs
	@touch .venv-docs/.ready

docs: .venv-docs/.ready ## build the documentation into build/site; a broken link or reference fails
	PATH="$(CURDIR)/.venv-docs/bin:$$PATH" NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet

reference: setup ## write the pages of docs/reference that come from the code
	$(BIN)/python tools/reference_pages.py

report: setup ## run turngate verify, and write its result into the verification report
	$(BIN)/python tools/verification_report.py

deep: setup ## the long forms of the tests, which take minutes
	$(BIN)/pytest -n auto --dist worksteal -m deep

.venv-agents/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-agents
	$(AGENTS)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(AGENTS)/python -m pip install --quiet --editable '.[verify]' --group agents
	@touch .venv-agents/.ready

agents: .venv-agents/.ready ## the recipes of examples/agents, in a .venv-agents of their own (any two cancels: make agents DEEP=yes)
	$(AGENTS)/mypy --strict examples/agents tests/recipes/*.py
	CI=true $(AGENTS)/pytest -n auto --dist worksteal -m "agents $(if $(DEEP),,and not deep)" tests/recipes

tests/acp/clients/node_modules: tests/acp/clients/package.json
	npm install --prefix tests/acp/clients --silent --no-audit --no-fund --no-package-lock
	@touch $@

editors: setup tests/acp/clients/node_modules ## the clients of the Agent Client Protocol from npm; needs Node and npm
	CI=true $(BIN)/pytest -m editors tests/acp

.venv-gallery/.ready: pyproject.toml examples/conformance/peers/package.json
	$(PYTHON) -m venv .venv-gallery
	$(GALLERY)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(GALLERY)/python -m pip install --quiet --editable '.[verify]' --group gallery
	npm install --prefix examples/conformance/peers --silent --no-audit --no-fund --no-package-lock
	@touch .venv-gallery/.ready

soundness: setup ## the conformance kit on right dispatchers only, which takes an hour: it must accuse none of them
	nice $(BIN)/python tools/soundness.py --executions 50000

gallery: .venv-gallery/.ready ## check the peers and write GALLERY.md; needs Node, npm, Redis and PostgreSQL (one of them: make gallery OF=dbos)
	$(GALLERY)/python tools/gallery.py $(if $(OF),--only $(OF))

galleryhistory: .venv-gallery/.ready ## record langgraph-api over HTTP from three processes, judge the history, and write its section of GALLERY.md
	$(GALLERY)/python tools/gallery_history.py

agentgallery: setup ## check the agents of the gallery offline and write their section of GALLERY.md; needs Node and npm (one of them: make agentgallery OF=opencode)
	$(BIN)/python tools/gallery_agents.py $(if $(OF),--only $(OF))

matrix: setup ## the tests of the dispatcher and of what drives it, on every other supported Python there is
	$(BIN)/python tools/matrix.py

sabotage: setup ## every known-bad design in the real dispatcher, found with each of ten seeds
	$(BIN)/python tools/sabotage_seeds.py

mutants: setup ## mutants: each is killed by a test, or listed in tools/equivalent_mutants.md (others: make mutants OF="client/_calls server --sample 300")
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group mutants
	$(BIN)/python tools/mutants.py $(OF)

coverage: setup ## branch coverage, layer by layer, each with its floor (the dispatcher and what the client sends again alone: make coverage OF=--quick)
	$(BIN)/python tools/coverage_report.py $(OF)

bench: setup ## what a run costs, next to the alternatives; reports, judges nothing
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group bench
	$(BIN)/python bench/bench.py
	$(BIN)/python bench/server.py
	$(BIN)/python bench/durable.py

chaos: setup ## real processes on a ledger, killed and stopped under load (longer: make chaos SECONDS=600; ON=sqlite)
	$(BIN)/python tools/chaos.py --seconds $(or $(SECONDS),60) --ledger $(or $(ON),postgres) $(if $(JSON),--json $(JSON))

lint: setup ## format, lint and type checks
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict
	$(BIN)/pyright

diagrams: setup ## write diagrams/ and the generated parts of SPEC.md and docs/
	$(BIN)/turngate diagrams

play: setup ## write pictures/play.html, the page to play with
	$(BIN)/turngate explore --html pictures/play.html

vectors: setup ## write the minimal set of test vectors to vectors/
	$(BIN)/turngate vectors vectors/minimal.jsonl

ports/node/node_modules: ports/node/package.json
	npm install --prefix ports/node --silent --no-audit --no-fund --no-package-lock
	@touch $@

ports: setup ports/node/node_modules ## test and pack the ports for Node and Go, and the player of the vectors; needs Node, npm and Go
	CI=true $(BIN)/pytest tests/project/test_ports.py
	@mkdir -p build
	cd ports/node && npm run --silent types && npm pack --silent --pack-destination ../../build
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build ports/python
	@ls build/turngate-port-*.tgz build/turngate_vectors-*.whl

oracles: setup ## hold the explorer against SPIN and TLC, number by number (go deeper: make oracles DEEP=--deep)
	@if ! { command -v spin && command -v gcc && command -v java; } >/dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && apt-get install -y -qq $(ORACLE_PACKAGES) >/dev/null; \
	  else \
	    echo "SPIN, gcc and Java are needed; install them with: apt-get install $(ORACLE_PACKAGES)" >&2; exit 2; \
	  fi; \
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group oracles
	$(BIN)/turngate oracles $(DEEP)

prove: setup ## the unbounded proof: every property for any number of runs, by two solvers (go deeper: make prove DEEP=--deep)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group proof
	$(BIN)/turngate prove $(DEEP)

clean: ## remove what the other targets made
	rm -rf .venv .venv-* examples/conformance/peers/node_modules ports/node/node_modules tests/acp/clients/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
