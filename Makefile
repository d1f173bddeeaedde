# lightkeeper: `make demo` and `make test` work from a fresh clone with Python 3.11+, make and git.
.DEFAULT_GOAL := help
# Who builds Python by hand or by pyenv leaves its optimizations out, and all here takes a fifth longer: the system's then
PYTHON ?= $(shell python3 -c 'import sysconfig; "optimizations" in sysconfig.get_config_var("CONFIG_ARGS") or exit(1)' \
  2>/dev/null || { /usr/bin/python3 -c 'import ensurepip, sys, venv; exit(sys.version_info < (3, 11))' 2>/dev/null \
  && echo /usr/bin/; })python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.lightkeeper-setup
# More processes than work on two cores: tests also wait. tests/sharing.py says which integration tests
# go together (the fleets do, two at a time).
UNIT        := -n 3 --dist worksteal -m 'not integration'
INTEGRATION := -n 6 --dist loadscope -m integration
# The unit part writes thousands of small files: into memory where that has 1 GB and may hold programs; a disk takes 5 s more.
MEMORY = $(shell ! grep -qs ' /dev/shm [^ ]* [^ ]*noexec' /proc/mounts \
  && [ "$$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 1000000 ] 2>/dev/null && echo TMPDIR=/dev/shm)
# compiled tests are kept, whatever the environment says
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
# `make test` leaves nothing to chance; what explores does: SEED=number draws the same again
SAME    := PYTHONHASHSEED=0 LIGHTKEEPER_DEEP=1
EXPLORE  = LIGHTKEEPER_DEEP=$(DEEP) $(PYTEST) -q --randomly-seed=$(SEED) --hypothesis-seed=$(SEED)
DEEP    ?= 5
SEED    := $(or $(SEED),$(shell od -An -N3 -tu4 /dev/urandom | tr -d ' '))
LOCK  := $(abspath $(BIN))/uv pip compile --quiet --no-annotate --generate-hashes --python-version 3.11 \
  --python-platform linux --custom-compile-command 'make lock'
BUILD := hatchling>=1.27

.PHONY: help setup lock demo test test-unit test-integration explore check lint types contracts bench fuzz scoreboard campaign field netlab kubernetes cuts matrix matrix-versions loss-band kill-each soak format docs dashboards dashboard-pictures openapi metrics-doc screenshots

help:  ## list what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 20

setup: $(STAMP)  ## everything into .venv (torch first and pinned: a plain range may pull CUDA builds)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "lightkeeper needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "Python's venv module is missing. On Debian: apt-get install python3-venv" >&2; exit 2; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version): torch (CPU), TorchFT and lightkeeper; quiet for 1 to 3 minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0 torchft==0.2.0
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[trainer,dev]'
	@touch $@

demo: setup  ## a real TorchFT fleet loses a rank, and heals (options: ARGS="--fault stop --groups 2")
	$(BIN)/lightkeeper demo $(ARGS)

# in a fresh clone: each of the workers would compile all tests by itself, 8 s of CPU
tests/__pycache__: | setup
	@for half in tests/monitor '--ignore tests/monitor'; do \
	  $(PYTEST) -q -n 0 --collect-only $$half >/dev/null 2>&1 & done; wait

test: setup tests/__pycache__  ## unit part, then the integration part with real processes
	$(SAME) $(MEMORY) $(PYTEST) -q $(UNIT) $(ARGS)
	$(SAME) $(PYTEST) -q $(INTEGRATION) $(ARGS)

test-unit: setup tests/__pycache__  ## the part without real training processes
	$(SAME) $(MEMORY) $(PYTEST) -q $(UNIT) $(ARGS)

test-integration: setup tests/__pycache__  ## real ranks, sidecars, Lighthouse
	$(SAME) $(PYTEST) -q $(INTEGRATION) $(ARGS)

explore: setup  ## new random cases and another order: not the same twice (DEEP=20 for a night; SEED=number again)
	$(EXPLORE) $(UNIT) $(ARGS)
	$(EXPLORE) $(INTEGRATION) $$(grep -rlE 'import .*\bgiven\b|tests\.deep|test_schemathesis' --include='test_*.py' tests) $(ARGS)

check: lint types contracts  ## lint (complexity, too), types, import contracts

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.complexity

types: setup
	$(BIN)/mypy

contracts: setup
	$(BIN)/lint-imports

bench: setup  ## figures; compares two things in one run, asserts no wall time
	LIGHTKEEPER_BENCH=1 $(BIN)/python -m pytest -q -s --randomly-dont-reorganize tests/bench $(ARGS)

fuzz: setup  ## odd answers, registrations, gate traffic and dumps, all in turn (ARGS="wire --minutes 30 --seed 1"); then bytes, coverage-guided
	$(BIN)/python -m tests.fuzz $(ARGS)
	$(BIN)/python -m tests.fuzz.guided bytes 120
	$(BIN)/python -m tests.fuzz.guided values 120

scoreboard: setup  ## ours and torchfrtrace on simulated jobs with known faults; writes evidence/scoreboard.md (5 minutes)
	LIGHTKEEPER_COMMAND="make scoreboard" $(BIN)/python -m tests.corpus.scoreboard $(ARGS)

campaign: setup  ## every fault class on real fleets, 20 runs each; writes evidence/campaign.md (3 hours; --resume)
	LIGHTKEEPER_COMMAND="make campaign" $(BIN)/python -m experiments campaign --resume $(ARGS)

matrix: setup  ## faults x Lighthouse up or down, with and without lightkeeper and gate; writes evidence/eviction-matrix.md (2 hours)
	LIGHTKEEPER_COMMAND="make matrix" $(BIN)/python -m experiments eviction-matrix --resume $(ARGS)

field: setup  ## bugs as people write them, on scripts that know nothing of us, 3 runs each; writes evidence/field.md (5 hours; --resume, ARGS="--only lock --runs 1")
	LIGHTKEEPER_COMMAND="make field" $(BIN)/python -m experiments field --resume $(ARGS)

netlab: setup  ## networks that break under a job, with lightkeeper and TorchFT alone; as root, in namespaces; writes evidence/netlab.md (3 hours; ARGS="--only host-lost --runs 5")
	LIGHTKEEPER_COMMAND="make netlab" $(BIN)/python -m experiments netlab --resume $(ARGS)

kubernetes: setup  ## the examples on a real Kubernetes of this machine; rollouts, drains, lost nodes; as root, with Go and docker; writes evidence/kubernetes.md (2 hours; ARGS="run rollout drain-.*", ARGS=down)
	LIGHTKEEPER_COMMAND="make kubernetes" $(BIN)/python -m tests.kubernetes $(ARGS)

cuts: setup  ## 200 cuts between real managers and their gate or Lighthouse, at random moments (7 minutes; ARGS="--way lighthouse")
	$(BIN)/python -m tests.gate.cuts $(ARGS)

matrix-versions: setup  ## the tests that versions can break on {torch 2.13, 2.15} x {TorchFT 0.2.0, nightly}, in venvs outside of the tree; writes docs/versions.md (hours, 12 GB; ARGS="--torch 2.15.0")
	$(BIN)/python -m experiments.versions $(ARGS)

loss-band: setup  ## loss of a run with evictions beside one without, same seed; evidence/README.md (6 minutes)
	LIGHTKEEPER_COMMAND="make loss-band" $(BIN)/python -m experiments loss-band $(ARGS)

kill-each: setup  ## every process of a real fleet killed in turn, with and without gate; writes evidence/kill-each.md (25 minutes)
	LIGHTKEEPER_COMMAND="make kill-each" $(BIN)/python -m experiments kill-each --resume $(ARGS)

soak: setup  ## healthy training with pauses, contention, monitor restarts; evidence/campaign.md (30 minutes a shape)
	LIGHTKEEPER_COMMAND="make soak" $(BIN)/python -m experiments soak --resume $(ARGS)

lock: setup  ## the container's dependencies, pinned with hashes (ARGS=--upgrade: the newest that fit)
	cd examples/container && $(LOCK) ../../pyproject.toml $(addprefix --extra ,monitor kubernetes postgres gate) -o requirements.lock $(ARGS)
	cd examples/container && echo '$(BUILD)' | $(LOCK) - -o build.lock $(ARGS)

format: setup  ## rewrite in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

dashboards: setup  ## render the committed files for Grafana again: dashboards, its own alerts, rules as a Kubernetes object
	$(BIN)/python -m tests.dashboards.render
	$(BIN)/python -m tests.dashboards.operator_rules

dashboard-pictures: setup  ## every dashboard over simulated fleets, drawn by Grafana's libraries (npm and chromium; 20 minutes, then 5; ARGS="--small --only fleet")
	$(BIN)/python -m tests.dashboards.pictures $(ARGS)

openapi: setup  ## write the OpenAPI documents of WorkerServer and monitor again
	$(BIN)/python -m tests.openapi

docs: setup  ## the pages as a site, into build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

metrics-doc: setup  ## write docs/metrics.md from the code (ARGS=--measure: with figures measured anew)
	$(BIN)/python -m tests.metrics_doc $(ARGS)

screenshots: setup  ## pictures of a real run: the monitor's pages and the terminal (2 minutes; needs chromium)
	$(BIN)/python -m tests.screens $(ARGS)
