# make leaderboard   install, prepare a small real model, run the comparison, print its table
# make test          install everything, then every check but the long tests
# make test-long     the long tests: every model family, compiled engines, a real SLURM
# make docs          the documentation site, in site/
# make lint, make fast   the quick loops: static checks; tests without engines and slow ones
# All start from a bare machine with Python >= 3.11; what is done already is not done again.

PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
CONFIG ?= quickstart
BIN := .venv/bin

# Two test processes with two threads each would wait for one another on two cores.
PYTEST := HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest -q -n 2
ENGINES := vllm or ray or browser or latex

.PHONY: leaderboard test test-long lint fast docs format clean

leaderboard: .venv-quickstart
	@$(BIN)/leval-harness model smollm2
	@$(BIN)/leval-harness sweep $(CONFIG)

test: lint
	@$(BIN)/leval-harness model smollm2
	$(PYTEST) --dist worksteal --durations=25 -m "not (long or $(ENGINES))"
	$(PYTEST) --dist loadfile --durations=15 -m "($(ENGINES)) and not long"

test-long: .venv-test
	$(PYTEST) --dist loadfile --durations=25 -m long

lint: .venv-test
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

fast: .venv-test
	$(PYTEST) --dist worksteal -m "not (slow or long or $(ENGINES))"

docs: .venv-test
	@$(BIN)/mkdocs build --strict

format: .venv-test
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

.PHONY: .venv-quickstart .venv-test
.venv-quickstart .venv-test: .venv-%:
	@test -n "$(PYTHON)" || { echo "Error: Python 3.11 or newer is needed"; exit 1; }
	@$(PYTHON) packaging/bootstrap.py $*

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
