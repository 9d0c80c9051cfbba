"""Run every check in the environment that `bootstrap.py test` made: what `make test` does.

Usage: python packaging/checks.py [--record]

`--record` adds a line about the run to `tests/record.jsonl`, as `make test-all` does.
Standard library only. The static checks run side by side, then steps in order of cost, and the
first failure ends the run, so that a typing error is known in seconds. Where vLLM, a browser or
LaTeX cannot be had, the tests that need them are named; with CI set that is a failure.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from long_parts import counts, write_line

ROOT = Path(__file__).resolve().parents[1]
BIN = ROOT / ".venv" / "bin"
REAL = "vllm or ray or browser or latex"
# marker of tests -> programs of the system without which they cannot run
PROGRAMS = {"browser": ("chromium", "chromedriver"), "latex": ("pdflatex",)}

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


def run_side_by_side(steps: tuple[tuple[str, tuple[str, ...]], ...]) -> None:
    """Run steps that do not touch one another at once; end everything if any fails.

    Each is shown whole, in the order of `steps`.
    """

    def captured(command: tuple[str, ...]) -> tuple[float, "subprocess.CompletedProcess[str]"]:
        start = time.monotonic()
        step = [BIN / command[0], *command[1:]]
        done = subprocess.run(
            step, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        return time.monotonic() - start, done

    failed = 0
    with ThreadPoolExecutor(len(steps)) as pool:
        finished = pool.map(captured, [command for _, command in steps])
        for (name, command), (seconds, done) in zip(steps, finished, strict=True):
            print(f"\n== {name}: {' '.join(command)}\n{done.stdout}", end="")
            print(f"== {name}: {seconds:.0f} s, exit code {done.returncode}", flush=True)
            failed = failed or done.returncode
    if failed:
        sys.exit(failed)


def missing(installed: dict[str, Any]) -> dict[str, str]:
    """Marker -> reason, for the tests that cannot run on this machine."""
    reasons = {} if installed["vllm"] else {"vllm": str(installed["reason"])}
    for marker, programs in PROGRAMS.items():
        absent = [program for program in programs if shutil.which(program) is None]
        if absent:
            reasons[marker] = f"{' and '.join(absent)} not found"
    return reasons


def tests_of(marker: str) -> list[str]:
    """Ids of the tests that have a marker."""
    command = [BIN / "pytest", "--collect-only", "-q", "-m", marker]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return [line for line in listing.stdout.splitlines() if "::" in line]


def main() -> None:
    """Entry point."""
    start = time.monotonic()
    # Shells start background jobs with SIGINT ignored; the tests of Ctrl-C would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Everything that is called by name (lm_eval, vllm, leval-harness) is this environment's.
    os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    installed = json.loads((ROOT / ".venv" / ".installed" / "test.json").read_text())
    run_side_by_side(STATIC)
    run("model", ("leval-harness", "model", "smollm2"))
    # One thread each: two test processes with two threads each wait for one another on two cores.
    # Tests that one process has not begun go to one that is idle: files differ tenfold in cost.
    spread = ("-n", "2", "--dist", "worksteal")
    with tempfile.TemporaryDirectory() as folder:
        reports = [Path(folder) / f"{name}.xml" for name in ("fast", "real")]
        fast = ("pytest", "-q", *spread, "--durations=25", f"--junit-xml={reports[0]}")
        run("fast tests", (*fast, "-m", f"not (long or {REAL})"), OMP_NUM_THREADS="1")
        absent = missing(installed)
        wanted = " and ".join([f"({REAL})", "not long", *(f"not {marker}" for marker in absent)])
        # A file stays in one process: its tests share an engine, a server or a cluster.
        real = ("pytest", "-q", "-n", "2", "--dist", "loadfile", "--durations=15")
        real += (f"--junit-xml={reports[1]}", "-m", wanted)
        run("real engines", real, OMP_NUM_THREADS="1", VLLM_CPU_OMP_THREADS_BIND="nobind")
        if "--record" in sys.argv[1:]:
            seconds = round(time.monotonic() - start)
            write_line({"part": "make test", "seconds": seconds, **counts(*reports)})
    for marker, reason in absent.items():
        print(f"\nThese tests ({marker}) cannot run here: {reason}")
        print("\n".join(f"  {test}" for test in tests_of(marker)))
    if absent and os.environ.get("CI"):
        sys.exit("Error: in CI every test has to run")


if __name__ == "__main__":
    main()
