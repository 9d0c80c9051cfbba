# make leaderboard   install, prepare a small real model, run the comparison, print its table
# make test          install everything, then every check
# make test-all      every check, then the tests that `make test` leaves out, in parts that resume
# make docs          the documentation site, in site/
# make lint, make fast   the quick loops: static checks; tests without engines and slow ones
# All start from a bare machine with Python >= 3.11; what is done already is not done again.

PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
CONFIG ?= quickstart
BIN := .venv/bin

.PHONY: leaderboard test test-all lint fast docs format clean

leaderboard: .venv-quickstart
	@$(BIN)/leval-harness model smollm2
	@$(BIN)/leval-harness sweep $(CONFIG)

test: .venv-test
	@$(BIN)/python packaging/checks.py

test-all: .venv-test
	@$(BIN)/python packaging/checks.py --record
	@$(BIN)/python packaging/long_parts.py

lint: .venv-test
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

fast: .venv-test
	@OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/pytest -q -n auto --dist worksteal -m "not (slow or long or vllm or ray or browser or latex)"

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
