# Each target is one line that a person could type. `make` alone lists them.
# Where uv is not installed, it is put into .uv, a private folder of this checkout.

UV := $(or $(shell command -v uv),.uv/bin/uv)
PKG ?= nat
ARGS ?=
PYTEST := $(UV) run --all-packages pytest
PACKAGES := $(notdir $(wildcard packages/*))

.PHONY: help train test test-slow lint format types bench compare readme export new
help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.uv/bin/uv:
	python3 -m venv .uv
	.uv/bin/python -m pip install --quiet uv

train: $(filter .uv/%,$(UV)) ## train a paper on its default settings: make train PKG=nat [ARGS="--model.omega 0.1"]
	$(UV) run --package $(PKG) train $(ARGS)

test: $(filter .uv/%,$(UV)) ## the quick tests of the whole tree: make test [ARGS="-k loss"]
	$(PYTEST) --numprocesses 2 --dist loadgroup $(ARGS)

test-slow: $(filter .uv/%,$(UV)) ## the slow tests
	$(PYTEST) -m slow $(ARGS)

lint: $(filter .uv/%,$(UV)) ## style and formatting
	$(UV) run --all-packages ruff check .
	$(UV) run --all-packages ruff format --check .

format: $(filter .uv/%,$(UV)) ## mend what can be mended
	$(UV) run --all-packages ruff check --fix .
	$(UV) run --all-packages ruff format .

types: $(filter .uv/%,$(UV)) ## type checks of shared and of every package
	$(UV) run --all-packages mypy shared/src $(foreach p,$(PACKAGES),packages/$(p)/src) tools/*.py tools/skeleton/src

bench: $(filter .uv/%,$(UV)) ## benchmarks of a package: make bench PKG=nat
	$(UV) run --all-packages --all-groups pytest -m "" --benchmark-only -s packages/$(PKG) $(ARGS)

compare: $(filter .uv/%,$(UV)) ## a paper's method against its baselines; finished cells are kept
	$(UV) run --package $(PKG) $(PKG) compare $(ARGS)

readme: $(filter .uv/%,$(UV)) ## regenerate the tables of all READMEs from the results
	$(UV) run --all-packages python tools/readme.py

export: $(filter .uv/%,$(UV)) ## take a package away: make export PKG=nat DEST=../mine
	$(UV) run --all-packages python tools/export.py $(PKG) $(DEST)

new: $(filter .uv/%,$(UV)) ## write the skeleton of a new paper: make new NAME=foo
	$(UV) run --all-packages python tools/new.py $(NAME)
