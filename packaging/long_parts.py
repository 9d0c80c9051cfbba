"""Run the tests that `make test` leaves out, in parts: what `make test-all` does.

Usage: python packaging/long_parts.py [--changed] [--minutes N]

Each part is a run of pytest. A part that passed is not run again while its sources are the same,
so an interrupted run goes on where it ended. Once every part has passed, `tests/record.jsonl` gets
a line: when and on which commit, and for each part its time, its number of tests, the slowest of
them and a hash of its sources. Standard library only.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BIN = ROOT / ".venv" / "bin"
RECORD = ROOT / "tests" / "record.jsonl"
STATE = ROOT / ".test-all"
SLOWEST = 5
PRODUCT = ("leval_border", "resonance_vllm", "leval_tasks", "leval_harness", "harness_configs")
ROPE = ("leval_border", "resonance_vllm", "tests/families", "tests/shared")


@dataclass(frozen=True)
class Part:
    """Arguments of pytest, the files and folders that decide the result, and environment."""

    arguments: tuple[str, ...]
    sources: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


PARTS = {
    # Every family with every method, and with every type of transformers.
    "families": Part(("-n", "2", "-m", "long and not vllm", "tests/families"), ROPE),
    # The same in vLLM's own modules, built without weights.
    "families in vLLM": Part(("-m", "long and vllm", "tests/families"), ROPE),
    # Every family in vLLM's engine, and its other long tests.
    "engines": Part(
        ("-n", "2", "-m", "long", "-k", "not compiled", "tests/vllm"), (*ROPE, "tests/vllm")
    ),
    "compiled engines": Part(
        ("-n", "2", "-m", "long", "-k", "compiled", "tests/vllm"), (*ROPE, "tests/vllm")
    ),
    "inputs": Part(
        ("-n", "2", "-m", "long or not long", "--timeout=0", "tests/fuzz"),
        (*PRODUCT, "tests/fuzz"),
        {"FUZZ_INPUTS": "20000"},
    ),
    "kills": Part(
        ("-n", "2", "-m", "not ray", "tests/sweep/test_many_kills.py"),
        ("leval_border", "leval_harness/sweep", "tests/sweep", "tests/shared"),
        {"SWEEP_KILLS": "30"},
    ),
    # What is left: each file's own complete products, recipes, wheels, clusters.
    "others": Part(
        (
            *("-n", "2", "--dist", "loadfile", "-m", "long", "tests"),
            *("--ignore=tests/families", "--ignore=tests/vllm", "--ignore=tests/fuzz"),
        ),
        (*PRODUCT, "tests", "packaging", "benchmarks", "pyproject.toml", "CONTRIBUTING.md"),
    ),
}


def hash_of(sources: tuple[str, ...]) -> str:
    """SHA-256 of the names and contents of all files below the sources."""
    digest = hashlib.sha256()
    for source in sources:
        path = ROOT / source
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and file != RECORD and "__pycache__" not in file.parts:
                digest.update(str(file.relative_to(ROOT)).encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def recorded() -> dict[str, str]:
    """Part -> hash of its sources when all parts last passed."""
    if not RECORD.is_file() or not (lines := RECORD.read_text(encoding="utf-8").splitlines()):
        return {}
    return {name: part["sources"] for name, part in json.loads(lines[-1])["parts"].items()}


def passed_since() -> dict[str, dict[str, Any]]:
    """Part -> its result, of those that have passed since the last line of the record."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(STATE.glob("*.json"))}


def due(done: dict[str, str]) -> list[str]:
    """Parts whose sources are others than when they passed."""
    return [name for name, part in PARTS.items() if done.get(name) != hash_of(part.sources)]


def run(name: str) -> bool:
    """Run a part; keep its result if it passed."""
    part, sources = PARTS[name], hash_of(PARTS[name].sources)
    STATE.mkdir(exist_ok=True)
    report = STATE / f"{name}.xml"
    command = ["pytest", "-q", *part.arguments, f"--junit-xml={report}"]
    print(f"\n== {name}: {' '.join(command)}", flush=True)
    start = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    step = [BIN / command[0], *command[1:]]
    code = subprocess.run(
        step, cwd=ROOT, env=environment | part.environment, check=False
    ).returncode
    seconds = round(time.monotonic() - start)
    print(f"== {name}: {seconds} s, exit code {code}", flush=True)
    if code == 0:
        result = {"seconds": seconds, **counts(report), "sources": sources}
        (STATE / f"{name}.json").write_text(json.dumps(result))
    return code == 0


def counts(report: Path) -> dict[str, Any]:
    """Number of tests in a JUnit report, and the slowest ones with their seconds."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    times = {f"{c.get('classname')}::{c.get('name')}": float(c.get("time", 0)) for c in cases}
    slowest = sorted(times, key=lambda test: -times[test])[:SLOWEST]
    return {"tests": len(cases), "slowest": {test: round(times[test], 1) for test in slowest}}


def write_record() -> None:
    """Add the line of a run in which every part passed."""

    def git(*arguments: str) -> str:
        run = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True)
        return run.stdout.strip()

    changed = "+changes" if git("status", "--porcelain", "--untracked-files=no") else ""
    parts = passed_since()
    line = {
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
        "commit": git("rev-parse", "--short", "HEAD") + changed,
        "seconds": sum(part["seconds"] for part in parts.values()),
        "tests": sum(part["tests"] for part in parts.values()),
        "parts": parts,
    }
    with RECORD.open("a", encoding="utf-8") as record:
        record.write(json.dumps(line) + "\n")
    for path in STATE.iterdir():
        path.unlink()
    print(f"Every part passed; {RECORD.relative_to(ROOT)} has a new line.")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    changed_help = "only the parts whose sources differ from those in the record"
    parser.add_argument("--changed", action="store_true", help=changed_help)
    minutes_help = "start no part after so many minutes, and list those that remain"
    parser.add_argument("--minutes", type=float, default=float("inf"), help=minutes_help)
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    passed = {name: result["sources"] for name, result in passed_since().items()}
    names = due(recorded() | passed if options.changed else passed)
    deadline = time.monotonic() + 60 * options.minutes
    failed = []
    while names and time.monotonic() < deadline:
        if not run(names[0]):
            failed.append(names[0])
        names.pop(0)
    if names:
        print(f"No time was left for: {', '.join(names)}")
    if failed:
        sys.exit(f"Error: failed: {', '.join(failed)}")
    if not options.changed:
        write_record()


if __name__ == "__main__":
    main()
