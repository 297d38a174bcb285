# Two commands are all a fresh machine needs: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PARALLEL := --numprocesses auto --maxprocesses 8 --dist worksteal

.PHONY: run test check faults browser lint docs setup clean help

run: setup  ## train on 1,797 digits with 40 labels: CoMatch, and the same network on the labels alone
	$(BIN)/comatch train digits --labels 40 --baseline

test: setup lint  ## run lint and all tests
	$(BIN)/python -m pytest $(PARALLEL)

check: setup lint  ## run lint and the tests that train nothing, in less than a minute
	$(BIN)/python -m pytest $(PARALLEL) -q -m "not slow"

faults: setup  ## kill, damage and fill the disk at many more moments; takes a quarter of an hour
	COMATCH_FAULTS=long $(BIN)/python -m pytest $(PARALLEL) tests/faults tests/data/test_generated_folders.py

lint: setup  ## check format, lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

browser: setup  ## test the page of comatch label in chromium, installing it with apt-get if it is missing
	command -v chromium chromium-browser >/dev/null || apt-get install -y chromium || sudo apt-get install -y chromium
	$(BIN)/python -m pytest -q -m browser

docs: setup  ## build the documentation into build/site; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

setup: $(VENV)/.ready  ## install comatch and the tools into .venv

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

clean:  ## remove .venv and everything that was built
	rm -rf $(VENV) build *.egg-info src/*.egg-info

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
