"""Real comparisons of setups: the tables in docs/reports/diff.md.

    leval-harness diff A B --out DIR
    python benchmarks/diff_cases.py add "leval-harness diff A B" DIR/diff.json
    python benchmarks/diff_cases.py write

`add` keeps a result with its command in docs/reports/data/diff/cases.jsonl, in the place of an
earlier one of the same command; `write` makes the tables.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from generated import fill

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "docs/reports/diff.md"
CASES = ROOT / "docs/reports/data/diff/cases.jsonl"
HEAD = """\
| A | B | tokens | texts | B − A, nats a token | verdict | same token first | KL |
|---|---|---:|---:|---|---|---:|---:|
"""


def cases() -> list[dict[str, Any]]:
    """What was recorded, in its order."""
    if not CASES.is_file():
        return []
    return [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]


def add(command: str, file: Path) -> None:
    """Keep a result; curves and texts are left out, which are most of its size."""
    result = json.loads(file.read_text(encoding="utf-8"))
    del result["texts"]
    for length in result["lengths"]:
        del length["curve"]
    kept = [each for each in cases() if each["command"] != command]
    lines = [json.dumps(each) for each in [*kept, {"command": command, "result": result}]]
    CASES.parent.mkdir(parents=True, exist_ok=True)
    CASES.write_text("\n".join(lines) + "\n", encoding="utf-8")


def table(found: list[dict[str, Any]]) -> str:
    """A row for each comparison and length."""
    rows = []
    for each in found:
        a, b = (_name(each["result"][side]) for side in ("a", "b"))
        rows += [f"| {a} | {b} | {_length(length)} |\n" for length in each["result"]["lengths"]]
    return HEAD + "".join(rows)


def prices(found: list[dict[str, Any]]) -> str:
    """What static YaRN costs at each position, a row for each factor."""
    rows = [each["result"] for each in found if "rope=yarn" in each["result"]["b"]["text"]]
    parts = [length["equivalence"]["bins"] for result in rows for length in result["lengths"]]
    if not parts:
        return ""
    heads = [f"{part['start']:,} to {part['end']:,}" for part in parts[0]]
    lines = [" | ".join(["YaRN", *heads]), "|".join(["---", *["---:"] * len(heads)])]
    for result, bins in zip(rows, parts, strict=True):
        factor = result["b"]["text"].rpartition("factor=")[2]
        prices = [f"{p['difference']:+.4f} ({p['low']:+.4f} to {p['high']:+.4f})" for p in bins]
        lines.append(" | ".join([f"×{factor}", *prices]))
    return "".join(f"| {line} |\n" for line in lines)


def _length(length: dict[str, Any]) -> str:
    """The cells of one length."""
    found, divergence = length["equivalence"], length["divergence"]
    whole = found["whole"]
    verdict = length["verdict"]
    if verdict in ("worse", "better"):
        verdict += f" from {found['onset']:,} on" if found["onset"] else " at all positions"
    elif verdict == "same" and (whole["low"] > 0 or whole["high"] < 0):
        verdict += f"; measurably {'worse' if whole['difference'] > 0 else 'better'}"
    bound = "≥ " if divergence["what"].startswith("lower bound") else ""
    cells = [
        f"{length['length']:,}",
        str(length["texts"]),
        f"{whole['difference']:+.4f} ({whole['low']:+.4f} to {whole['high']:+.4f})",
        verdict,
        f"{100 * length['agreement']['value']:.1f} %",
        f"{bound}{divergence['value']:.5f}",
    ]
    return " | ".join(cells)


def _name(side: dict[str, Any]) -> str:
    """A setup without what does not matter to the reader of the table, and its version."""
    text = re.sub(r",(enforce_eager|max_model_len|n_threads)=\w+", "", side["text"])
    version = side["versions"].get("transformers") if text.startswith("hf") else None
    return f"`{text}`" + (f" ({version})" if version else "")


def write() -> None:
    """Put the tables between their markers in the report."""
    fill(REPORT, {"cases": table(cases()), "prices": prices(cases())})


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["add", command, file]:
            add(command, Path(file))
        case ["write"]:
            write()
        case _:
            sys.exit(__doc__)
