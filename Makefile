PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test slow verify check clean

help:  ## what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 10

setup:  ## both environments: .venv (client) and .venv-server (SGLang on a CPU, about 3 GB)
	@$(PYTHON) scripts/setup.py

demo: setup  ## an agent whose old tool outputs are truncated keeps its KV cache; numbers and a plot
	@$(BIN)/leyline demo

test: setup  ## lint, types, unit tests, tests on a real server (under 15 minutes)
	@$(MAKE) --no-print-directory check
	@$(BIN)/python -m pytest -m "not slow" $(ARGS)

slow: setup  ## the tests that take longer: random conversations, drift, every case on GQA
	@$(BIN)/python -m pytest -m slow $(ARGS)

verify: setup  ## every built-in architecture against an independent reference, float32 and bfloat16
	@$(BIN)/leyline verify --json out/verify.json $(or $(ARGS),--arch all)

check:  ## lint, formatting and types alone (client environment only)
	@$(PYTHON) scripts/setup.py client
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

clean:  ## remove both environments, caches and results
	rm -rf .venv .venv-server .venv.log .venv-server.log out build dist *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
