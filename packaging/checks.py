"""Run every check in the environment that `bootstrap.py test` made: what `make test` does.

Standard library only. Steps run in order of cost and the first failure ends the run, so that a
typing error is known in seconds. Where vLLM cannot be had its tests are named; with CI set that is
a failure.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = ROOT / ".venv" / "bin"
REAL = "vllm or ray or browser or latex"

STATIC = (
    ("lint", ("ruff", "check", ".")),
    ("format", ("ruff", "format", "--check", ".")),
    ("types", ("mypy",)),
    ("import contracts", ("lint-imports",)),
)


def run(name: str, command: tuple[str, ...], **environment: str) -> None:
    """Run one step, with additions to the environment, and end everything if it fails."""
    print(f"\n== {name}: {' '.join(command)}", flush=True)
    start = time.monotonic()
    full = {**os.environ, **environment}
    step = [BIN / command[0], *command[1:]]
    code = subprocess.run(step, cwd=ROOT, env=full, check=False).returncode
    print(f"== {name}: {time.monotonic() - start:.0f} s, exit code {code}", flush=True)
    if code:
        sys.exit(code)


def vllm_tests() -> list[str]:
    """Ids of the tests that need the vLLM engine."""
    command = [BIN / "pytest", "--collect-only", "-q", "-m", "vllm"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return [line for line in listing.stdout.splitlines() if "::" in line]


def main() -> None:
    """Entry point."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Everything that is called by name (lm_eval, vllm, leval-harness) is this environment's.
    os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    installed = json.loads((ROOT / ".venv" / ".installed" / "test.json").read_text())
    for name, command in STATIC:
        run(name, command)
    run("model", ("leval-harness", "model", "smollm2"))
    # One thread each: two test processes with two threads each wait for one another on two cores.
    fast = ("pytest", "-q", "-n", "2", "--durations=15", "-m", f"not ({REAL})")
    run("fast tests", fast, OMP_NUM_THREADS="1")
    if installed["vllm"]:
        run("real engines", ("pytest", "-q", "--durations=15", "-m", REAL))
        return
    run("real engines", ("pytest", "-q", "--durations=15", "-m", f"({REAL}) and not vllm"))
    print(f"\nvLLM is not installed ({installed['reason']}). These tests cannot run here:")
    print("\n".join(f"  {test}" for test in vllm_tests()))
    if os.environ.get("CI"):
        sys.exit("Error: in CI every test has to run")


if __name__ == "__main__":
    main()
