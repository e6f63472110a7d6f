SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

BIN := .venv/bin
# Bytecode is written at first import: compiling all of it would be a third of the installation.
PIP_INSTALL := -m pip install -qq --no-compile --disable-pip-version-check --no-input --require-hashes --only-binary=:all:
DESCRIBE := $(BIN)/buf build proto --exclude-source-info --as-file-descriptor-set
MYPY_TARGETS := server/inferwire_server clients/python/src/inferwire tools tests docker $(wildcard bench)

# --- environments: each stamp is as new as the lock it was installed from ------------------------------------------

.venv/.created:
	@echo "Creating .venv"
	@tools/create_venv.sh .venv
	@touch $@

.venv/.cpu: .venv/.created requirements/cpu.txt requirements/build.txt
	@echo "Installing the server and its CPU engine into .venv"
	@$(BIN)/python $(PIP_INSTALL) -r requirements/cpu.txt -r requirements/build.txt
	@touch $@

.venv/.editable: .venv/.cpu pyproject.toml clients/python/src/inferwire/_version.py
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-input --no-deps --no-build-isolation --editable .
	@touch $@

.venv/.dev: .venv/.editable requirements/dev.txt
	@echo "Installing what tests and checks need into .venv"
	@$(BIN)/python $(PIP_INSTALL) -r requirements/dev.txt
	@touch $@

.venv-stubs/.installed: requirements/stubs.txt
	@echo "Installing the stub generator into .venv-stubs"
	@tools/create_venv.sh .venv-stubs
	@.venv-stubs/bin/python $(PIP_INSTALL) -r requirements/stubs.txt
	@touch $@

.venv-checkov/.installed: requirements/checkov.txt
	@echo "Installing checkov into .venv-checkov"
	@tools/create_venv.sh .venv-checkov
	@.venv-checkov/bin/python $(PIP_INSTALL) -r requirements/checkov.txt
	@touch $@

# --- what people type ----------------------------------------------------------------------------------------------

.PHONY: help
help: ## Say what there is to make
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

.PHONY: demo
demo: .venv/.editable ## Stream a real model's tokens through server and client
	@$(BIN)/python -m tools.demo

.PHONY: demo-regions
demo-regions: .venv/.dev ## Drain, fail and kill a region of real servers under calls, direct and through Envoy
	@$(BIN)/python -m tools.demo_regions

.PHONY: test
test: .venv/.dev .venv-stubs/.installed ## Run the tests, less the slow ones
	@$(BIN)/python -m pytest -m "not slow and not gpu"

.PHONY: check
check: lint types imports proto stubs-fresh ## Lint, types, import rules, contract, stubs

.PHONY: ops-check
ops-check: .venv/.dev .venv-checkov/.installed ## Prove the files of docker/ and k8s/: recipes, compose, manifests, rules, dashboards
	@$(BIN)/python -m tools.ops_check

.PHONY: bench
bench: .venv/.dev ## Measure the goals and print them as ratios
	@$(BIN)/python -m bench

.PHONY: soak
soak: .venv/.dev ## A tiny KV cache under 2,000 requests, then half an hour of everything at once
	@$(BIN)/python -m tests.engines.openvino.soak --requests 2000
	@$(BIN)/python -m tools.soak --minutes 30

.PHONY: soak-short
soak-short: .venv/.dev ## The same with 200 requests and two minutes
	@$(BIN)/python -m tests.engines.openvino.soak --requests 200 --questions 20
	@$(BIN)/python -m tools.soak --minutes 2

.PHONY: chaos
chaos: .venv/.dev ## The whole fault matrix, then half an hour of random faults; writes docs/reliability.md's table
	@$(BIN)/python -m tests.chaos --minutes 30

.PHONY: fuzz
fuzz: .venv/.dev ## Look for counterexamples: many random examples a property, 250,000 random requests
	@$(BIN)/python -m pytest -m "hypothesis and not gpu" --hypothesis-profile=fuzz --timeout=1800
	@$(BIN)/python -m tools.fuzz_requests --requests 200000
	@$(BIN)/python -m tools.fuzz_requests --requests 50000 --credentials

.PHONY: stubs
stubs: .venv-stubs/.installed descriptors ## Generate the stubs, and the contract for Envoy, from proto/
	@.venv-stubs/bin/python tools/generate_stubs.py

.PHONY: descriptors
descriptors: .venv/.dev ## Write the contract for Envoy, which turns it into JSON
	@$(DESCRIBE) --output docker/envoy/inferwire.binpb

.PHONY: baseline
baseline: .venv/.dev ## Record the contract that later changes must not break
	@$(BIN)/buf build proto --exclude-source-info --output proto/baseline.binpb

.PHONY: lock
lock: .venv/.dev ## Compile requirements/*.txt; UPGRADE=1 moves to the newest versions allowed
	@PATH="$(BIN):$$PATH" tools/compile_locks.sh $(if $(UPGRADE),--upgrade)

.PHONY: format
format: .venv/.dev ## Format Python and protos
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .
	@$(BIN)/buf format proto --write --path proto/inferwire

.PHONY: clean
clean: ## Remove environments, caches and build output
	@rm -rf .venv .venv-checkov .venv-stubs build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# --- the parts of `make check` -------------------------------------------------------------------------------------

.PHONY: lint
lint: .venv/.dev
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .

.PHONY: types
types: .venv/.dev
	@$(BIN)/mypy $(MYPY_TARGETS)

.PHONY: imports
imports: .venv/.dev
	@$(BIN)/lint-imports --no-logo

.PHONY: proto
proto: .venv/.dev
	@$(BIN)/buf lint proto
	@$(BIN)/buf format proto --diff --exit-code --path proto/inferwire
	@$(BIN)/python -m tools.check_breaking
	@$(DESCRIBE) --output - | cmp - docker/envoy/inferwire.binpb || { echo "stale: run make descriptors"; exit 1; }

.PHONY: stubs-fresh
stubs-fresh: .venv-stubs/.installed
	@.venv-stubs/bin/python tools/generate_stubs.py --check
