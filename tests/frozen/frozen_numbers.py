"""Frozen numbers on disk, and how they are compared.

A part is a dictionary: a row's name -> its values by name, each a number, a text, None, or a list
of numbers. Parts without lists of frequencies are JSON, a line a row; the others are `.npz`, the
lists in two arrays beside the rows.
"""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
HEADING = "## Allowed differences"
LISTS = ("floats", "integers")
LARGEST_EXACT = 10**6
"""Whole numbers up to this one are compared exactly, larger ones like other numbers."""
# Relative and absolute tolerance of a part; another processor adds in another order.
TOLERANCES = {
    **dict.fromkeys(("rope_in_transformers", "rope_in_vllm"), (1e-6, 0.0)),
    **dict.fromkeys(("posgen_training", "finetuning"), (1e-4, 1e-6)),
    **dict.fromkeys(("token_losses", "token_losses_in_vllm", "diff"), (1e-4, 2e-4)),
}
OTHERS = (1e-6, 1e-9)

Rows = dict[str, dict[str, Any]]


def file_of(part: str) -> Path:
    """Where a part lies."""
    return HERE / (f"{part}.npz" if part.startswith("rope_in_") else f"{part}.json")


def read(part: str) -> Rows:
    """Read a part."""
    file = file_of(part)
    if file.suffix == ".json":
        rows: Rows = json.loads(file.read_text(encoding="utf-8"))
        return rows
    with np.load(file, allow_pickle=False) as arrays:
        lists = {kind: arrays[kind] for kind in LISTS}
        rows = json.loads(arrays["rows"].tobytes())

    def unpacked(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        kind, start, end = value
        return lists[kind][start:end].tolist()

    return {n: {k: unpacked(v) for k, v in row.items()} for n, row in rows.items()}


def differences(part: str, found: Rows) -> Iterator[str]:
    """What differs from a part: `ROW: VALUE: kept → found`, or `ROW: gone` and `ROW: new`."""
    kept = read(part)
    relative, absolute = TOLERANCES.get(part, OTHERS)
    for row in sorted(kept.keys() | found.keys()):
        if row not in found or row not in kept:
            yield f"{row}: {'new' if row in found else 'gone'}"
            continue
        for name, value in kept[row].items():
            other = found[row].get(name)
            if not same(value, other, relative, absolute):
                yield f"{row}: {name}: {shown(value)} → {shown(other)}"


def same(kept: Any, found: Any, relative: float, absolute: float) -> bool:
    """Whether two values are equal, numbers within a tolerance."""
    if isinstance(kept, list) and isinstance(found, list):
        pairs = zip(kept, found, strict=False)
        return len(kept) == len(found) and all(same(*pair, relative, absolute) for pair in pairs)
    if not all(isinstance(each, int | float) for each in (kept, found)):
        return bool(kept == found)
    if isinstance(kept, int) and abs(kept) <= LARGEST_EXACT:
        return bool(kept == found)
    return math.isclose(kept, found, rel_tol=relative, abs_tol=absolute)


def shown(value: Any) -> str:
    """A value for a message; a list is cut."""
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}…"


def allowed(part: str) -> list[str]:
    """Patterns of the differences of a part that the table of the README allows."""
    table = (HERE / "README.md").read_text(encoding="utf-8").partition(HEADING)[2]
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \|", table, re.MULTILINE)
    return [pattern for of, pattern in rows if of == part]


def judged(part: str, found: Rows) -> tuple[list[str], list[str]]:
    """Differences that no pattern of the README allows, and patterns that no difference needs."""
    patterns, differing = allowed(part), list(differences(part, found))
    wrong = [each for each in differing if not any(matches(each, p) for p in patterns)]
    idle = [p for p in patterns if not any(matches(each, p) for each in differing)]
    return wrong, idle


def matches(line: str, pattern: str) -> bool:
    """Whether a pattern, in which `*` stands for any text, covers a line."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), line) is not None
