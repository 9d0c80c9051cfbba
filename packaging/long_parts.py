"""Run the tests that `make test` leaves out, in parts: what `make test-all` does.

Usage: python packaging/long_parts.py [--recorded] [--minutes N]

Each part is a run of pytest. When it passes, `tests/record.jsonl` gets a line; CONTRIBUTING.md
describes its fields. A part with a line for its present sources is not run again, so an interrupted
run goes on where it ended. Standard library only.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BIN = ROOT / ".venv" / "bin"
RECORD = ROOT / "tests" / "record.jsonl"
SLOWEST = 5
LAST_START = 15
"""Minutes before the end of `--minutes` from which on no part is started."""
PRODUCT = ("leval_border", "resonance_vllm", "leval_tasks", "leval_harness", "harness_configs")
HELPERS = ("tests/shared/families_*.py", "tests/shared/naive_*.py")
ROPE = ("leval_border", "resonance_vllm", "tests/families", *HELPERS)


@dataclass(frozen=True)
class Part:
    """Arguments of pytest, what decides the result (files, folders, patterns), and environment."""

    arguments: tuple[str, ...]
    sources: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


PARTS = {
    # Every family with every method, and with every type of transformers.
    "families": Part(("-n", "2", "-m", "long and not vllm", "tests/families"), ROPE),
    # The same in vLLM's own modules, built without weights.
    "families in vLLM": Part(("-m", "long and vllm", "tests/families"), ROPE),
    # Every family in vLLM's engine, a process for some of them, and its other long tests.
    "engines": Part(
        ("-n", "2", "--dist", "loadgroup", "-m", "long", "tests/vllm"), (*ROPE, "tests/vllm")
    ),
    "inputs": Part(
        ("-n", "2", "-m", "long or not long", "--timeout=0", "tests/fuzz"),
        (*PRODUCT, "tests/fuzz", "tests/golden", "tests/shared/card_checks.py"),
        {"FUZZ_INPUTS": "20000"},
    ),
    "kills": Part(
        ("-n", "2", "-m", "not ray", "tests/sweep/test_many_kills.py"),
        ("leval_border", "leval_harness/sweep", "tests/sweep"),
        {"SWEEP_KILLS": "30"},
    ),
    # What is left: each file's own complete products, recipes, wheels, clusters.
    "others": Part(
        (
            *("-n", "2", "--dist", "loadfile", "-m", "long", "tests"),
            *("--ignore=tests/families", "--ignore=tests/vllm", "--ignore=tests/fuzz"),
        ),
        # Shell blocks of the documents are run, and figures are drawn again from their data.
        (*PRODUCT, "tests", "packaging", "benchmarks", "docs", "pyproject.toml", "*.md"),
    ),
}


def hash_of(sources: tuple[str, ...]) -> str:
    """SHA-256 of the names and contents of all files below the sources, paths or patterns."""
    digest = hashlib.sha256()
    for path in (each for source in sources for each in sorted(ROOT.glob(source))):
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and file != RECORD and "__pycache__" not in file.parts:
                digest.update(str(file.relative_to(ROOT)).encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def recorded() -> dict[str, dict[str, Any]]:
    """Part -> its last line in the record."""
    if not RECORD.is_file():
        return {}
    lines = map(json.loads, RECORD.read_text(encoding="utf-8").splitlines())
    return {line["part"]: line for line in lines}


def fits(name: str, seconds_left: float) -> bool:
    """Whether a part may begin: there is a quarter of an hour, and its recorded time."""
    known = recorded().get(name, {}).get("seconds", 0)
    return seconds_left >= max(60 * LAST_START, known)


def run(name: str) -> bool:
    """Run a part; record it if it passed."""
    part, sources = PARTS[name], hash_of(PARTS[name].sources)
    print(f"\n== {name}: pytest {' '.join(part.arguments)}", flush=True)
    start = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [BIN / "pytest", "-q", *part.arguments, f"--junit-xml={report}"]
        code = subprocess.run(
            command, cwd=ROOT, env=environment | part.environment, check=False
        ).returncode
        seconds = round(time.monotonic() - start)
        print(f"== {name}: {seconds} s, exit code {code}", flush=True)
        if code == 0:
            write_line({"part": name, "seconds": seconds, **counts(report), "sources": sources})
    return code == 0


def counts(*reports: Path) -> dict[str, Any]:
    """Number of tests in JUnit reports, and the slowest ones with their seconds."""
    cases = [case for report in reports for case in ElementTree.parse(report).iter("testcase")]
    times = {f"{c.get('classname')}::{c.get('name')}": float(c.get("time", 0)) for c in cases}
    slowest = sorted(times, key=lambda test: -times[test])[:SLOWEST]
    return {"tests": len(cases), "slowest": {test: round(times[test], 1) for test in slowest}}


def commit() -> str:
    """The present commit, with `-dirty` if files other than the record differ from it."""

    def git(*command: str) -> str:
        run = subprocess.run(
            ("git", *command), cwd=ROOT, capture_output=True, text=True, check=False
        )
        return run.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", ".", f":!{RECORD}")
    return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")


def write_line(result: dict[str, Any]) -> None:
    """Add a run that passed to the record."""
    when = datetime.now(UTC).isoformat(timespec="minutes")
    with RECORD.open("a", encoding="utf-8") as record:
        record.write(json.dumps({"when": when, "commit": commit(), **result}) + "\n")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    recorded_help = "only parts that have passed before; those that never have are listed"
    parser.add_argument("--recorded", action="store_true", help=recorded_help)
    minutes_help = "time until everything has to be over: parts that do not fit in are listed"
    parser.add_argument("--minutes", type=float, default=float("inf"), help=minutes_help)
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    done = recorded()
    names = [
        name
        for name, part in PARTS.items()
        if done.get(name, {}).get("sources") != hash_of(part.sources)
    ]
    if options.recorded and (never := [name for name in names if name not in done]):
        print(f"Never run so far, see `make test-all`: {', '.join(never)}")
        names = [name for name in names if name in done]
    end = time.monotonic() + 60 * options.minutes
    failed, left = [], []
    for name in names:
        if not fits(name, end - time.monotonic()):
            left.append(name)
        elif not run(name):
            failed.append(name)
    if left:
        print(f"No time was left for: {', '.join(left)}")
    if failed:
        sys.exit(f"Error: failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
