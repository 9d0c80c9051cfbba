"""Which engines run which RoPE settings right: the matrix in README.md.

    python reports/rope-engines/matrix.py record ENGINE --python VENV/bin/python
    python reports/rope-engines/matrix.py write

`record` runs the vectors with an engine in its own environment and keeps the outcomes in
engines.jsonl, a line for each version of an engine; `write` makes the tables.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.append(str(HERE.parent))
from generated import fill  # noqa: E402

RUNNER = HERE / "rope_vectors.py"
REPORT, RESULTS = HERE / "README.md", HERE / "engines.jsonl"
NAMES = {
    "transformers": "transformers", "vllm": "vLLM", "mlx_lm": "mlx-lm", "mlx_vlm": "mlx-vlm",
    "litgpt": "litgpt", "llama_cpp": "llama.cpp (xllamacpp)", "sglang": "sglang",
    "lmdeploy": "lmdeploy",
}  # fmt: skip
OUTCOMES = ("right", "wrong", "ignored", "not supported")


def record(engine: str, python: Path) -> None:
    """Run the vectors; a run of the same version is replaced."""
    run = answer([str(python), str(RUNNER), engine, "--json"])
    topics = list(dict.fromkeys(o["topic"] for o in run["outcomes"]))
    run["counts"] = {
        topic: Counter(o["status"] for o in run["outcomes"] if o["topic"] == topic)
        for topic in topics
    }
    kept = ("id", "topic", "status", "position", "text")
    differ = [o for o in run["outcomes"] if o["status"] != "right"]
    run["outcomes"] = [{key: outcome[key] for key in kept} for outcome in differ]
    others = [o for o in runs() if (o["engine"], o["version"]) != (engine, run["version"])]
    lines = sorted(map(json.dumps, [*others, run]))
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def answer(command: list[str]) -> dict[str, Any]:
    """What the runner prints last, as JSON."""
    child = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if not child.stdout.strip():
        sys.exit(child.stderr)
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return found


def runs() -> list[dict[str, Any]]:
    """What was recorded, the newest version of an engine first."""
    if not RESULTS.is_file():
        return []
    found = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    order = list(NAMES)

    found.sort(key=version_of, reverse=True)
    return sorted(found, key=lambda run: order.index(run["engine"]))


def version_of(run: dict[str, Any]) -> list[int]:
    """The numbers of a run's version."""
    parts = run["version"].split("+")[0].split(".")
    return [int(part) for part in parts if part.isdigit()]


def matrix(found: list[dict[str, Any]]) -> str:
    """A row for each topic, a column for each engine and version."""
    heads = [f"{NAMES[run['engine']]} {run['version']}" for run in found]
    topics = dict.fromkeys(topic for run in found for topic in run["counts"])
    lines = ["| settings | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for topic in topics:
        cells = [_cell(run, topic) for run in found]
        lines.append(f"| {topic} | " + " | ".join(cells) + " |")
    dates = [f"{head} on {run['date']}" for head, run in zip(heads, found, strict=True)]
    return "\n".join([*lines, "", f"Run: {'; '.join(dates)}."]) + "\n"


def _cell(run: dict[str, Any], topic: str) -> str:
    """Counts, and where the first difference counts."""
    counts = run["counts"].get(topic, {})
    total = sum(number for status, number in counts.items() if status != "not read")
    if not total:
        return "not read"
    if counts.get("right") == total:
        return f"right ({total})"
    parts = [f"{counts[status]} {status}" for status in OUTCOMES if counts.get(status)]
    wrong = [o for o in run["outcomes"] if o["topic"] == topic and o["position"] is not None]
    since = f", from position {min(o['position'] for o in wrong)}" if wrong else ""
    return ", ".join(parts) + since


def details(found: list[dict[str, Any]]) -> str:
    """What is not right, an engine and topic a line, with the largest example."""
    lines = []
    for run in found:
        lines += [f"**{NAMES[run['engine']]} {run['version']}**", ""]
        for topic in run["counts"]:
            there = [o for o in run["outcomes"] if o["topic"] == topic]
            for status in ("wrong", "ignored", "not supported"):
                same = [o for o in there if o["status"] == status]
                if same:
                    more = f" and {len(same) - 1} more" if len(same) > 1 else ""
                    text = same[0]["text"].replace("|", "\\|").replace("<", "&lt;")[:160]
                    lines.append(f"- {topic}, {status}: `{same[0]['id']}`{more}: {text}")
        lines.append("")
    return "\n".join(lines)


def write() -> None:
    """Put the tables into the report."""
    fill(REPORT, {"matrix": matrix(runs()), "details": details(runs())})


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("engine", choices=NAMES)
    recording.add_argument("--python", type=Path, default=Path(sys.executable))
    commands.add_parser("write")
    args = parser.parse_args()
    if args.command == "write":
        write()
    else:
        record(args.engine, args.python)


if __name__ == "__main__":
    main()
