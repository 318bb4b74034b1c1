# Everything a developer or CI runs. `make` alone lists the targets.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NIXL_STAMP := $(VENV)/.nixl
PROTOS := $(wildcard proto/baton/v1/*.proto)
PROTOC = $(BIN)/python -m grpc_tools.protoc -I proto $(PROTOS)
ENGINE ?= docker
IMAGE ?= baton
VERSION := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)
IMAGE_ARGS = --build-arg VERSION=$(VERSION) --build-arg REVISION=$$(git rev-parse HEAD) \
             $(if $(TORCH_INDEX),--build-arg TORCH_INDEX=$(TORCH_INDEX))
# A file's tests share what they start. In their order: files of one test may be the longest.
IN_PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder
SOURCES := baton engine kernels services tests bench helm

export PATH := $(CURDIR)/$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Hundreds of processes import the same modules: bytecode is kept, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run test verify proto proto-check docs fmt lint type imports chromium pytest chart images soak bench clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  \033[1m%-12s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create the environment and install everything into it

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Baton needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@# The pip that Python brings may be slow to resolve. What is never imported need not be
	@# compiled: most of it.
	$(BIN)/pip install --quiet --no-compile -c constraints.txt --upgrade pip
	$(BIN)/pip install --quiet --no-compile -c constraints.txt -e '.[serve,planner,demo,dev]'
	@touch $@

$(NIXL_STAMP): $(STAMP)
	@$(BIN)/pip install --quiet -c constraints.txt -e '.[nixl]' \
	  || echo "NIXL can't be installed here: its tests will be skipped"
	@touch $@

chromium: ## Install Debian's Chromium for the test of the gateway's page, where that is possible
	@command -v chromium > /dev/null \
	  || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && apt-get update -qq \
	       && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } > /dev/null 2>&1 \
	  || echo "Chromium can't be installed here: tests in a browser will be skipped"

run: $(STAMP) ## Start Baton on the demo model (Ctrl-C stops it)
	$(BIN)/baton up

test: verify ## The same as verify: everything CI runs

verify: $(STAMP) ## Run every check and every test
	@$(MAKE) --no-print-directory -j3 -Otarget proto-check lint type imports $(NIXL_STAMP) chromium
	@$(MAKE) --no-print-directory pytest

pytest: $(STAMP) $(NIXL_STAMP) chromium ## Run the tests alone; ARGS='-k name' chooses
ifdef ARGS
	$(BIN)/pytest $(ARGS)
else
	@# First what computes, then what starts processes.
	OMP_NUM_THREADS=1 $(BIN)/pytest $(IN_PARALLEL) tests/unit tests/kernels tests/parity tests/chart
	$(BIN)/pytest $(IN_PARALLEL) tests/integration tests/faults tests/contract
endif

chart: $(STAMP) ## Lint, render and check the Helm chart and the Dockerfile
	$(BIN)/pytest tests/chart

images: ## Build the images for CPU and CUDA; ENGINE=podman, TORCH_INDEX=URL of torch's CPU builds
	$(ENGINE) build --target cpu $(IMAGE_ARGS) -t $(IMAGE):$(VERSION) .
	$(ENGINE) build --target cuda $(IMAGE_ARGS) -t $(IMAGE):$(VERSION)-cuda .

soak: $(STAMP) ## Run hundreds of fault schedules; SCHEDULES=300, or SEED=17 to replay one
	$(BIN)/python -m tests.faults $(if $(SEED),--seed $(SEED),--schedules $(or $(SCHEDULES),300) --requests 10000 --keep-going)

proto: $(STAMP) ## Generate the gRPC stubs from proto/
	$(PROTOC) --python_out=. --grpc_python_out=. --mypy_out=quiet:. --mypy_grpc_out=quiet:.

proto-check: $(STAMP) ## Check that the committed stubs are those of proto/
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT \
	  && $(PROTOC) --python_out=$$scratch --grpc_python_out=$$scratch \
	       --mypy_out=quiet:$$scratch --mypy_grpc_out=quiet:$$scratch \
	  && diff -r -x '__init__.py' -x '__pycache__' "$$scratch/baton/v1" baton/v1 \
	  || { echo "The stubs in baton/v1 differ from proto/: run 'make proto'."; exit 1; }

docs: $(STAMP) ## Generate docs/metrics.md and the dashboards from the code
	$(BIN)/python -m services.catalogue

fmt: $(STAMP) ## Format the code and sort imports
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix --quiet $(SOURCES)

lint: $(STAMP) ## Check style and formatting
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check --quiet $(SOURCES)

type: $(STAMP) ## Check types
	$(BIN)/mypy

imports: $(STAMP) ## Check who imports whom
	$(BIN)/lint-imports

bench: $(STAMP) ## List the benchmarks; each is one command
	@for file in bench/*.py; do printf '  %-36s %s\n' "$$file" "$$(sed -n '1s/^"""//;1s/"""$$//;1p' $$file)"; done

clean: ## Remove the environment and everything generated but the stubs
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
