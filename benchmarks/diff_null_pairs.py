"""Setups that must read alike: does `diff` ever say otherwise?

    python benchmarks/diff_null_pairs.py MODEL docs/reports/data/diff/null_pairs.csv

Forty null pairs: a checkpoint on transformers in float32 and bfloat16, read one text at a time,
against the same in batches, in chunks, with another number of threads and with another attention,
on four sets of texts. Ten runs of the gate: one saved reference, each run in a process of its own
with other threads, batches and chunks. Texts: the language reference that comes with Python.
"""

import argparse
import csv
import itertools
import tempfile
from pathlib import Path

from leval_harness.parity.sides import Options

from leval_harness.parity.compare import diff, save_reference
from leval_tasks.perplexity.documents import language_reference

DTYPES = ("float32", "bfloat16")
CHANGES = (
    "batch_size=4", "prefill_chunk=64", "prefill_chunk=100,batch_size=2", "threads=2",
    "attn_implementation=eager",
)  # fmt: skip
SETS = 4
NULL = {"lengths": (128,), "count": 8, "budget": 600.0, "isolated": False}
GATE = {"lengths": (128,), "count": 8, "budget": 300.0}
GATE_CHANGES = [
    *(f"threads={n},batch_size={size}" for n, size in itertools.product((1, 2), (1, 2, 3, 4))),
    "threads=2,prefill_chunk=48",
    "threads=1,batch_size=4,prefill_chunk=100",
]
FIELDS = (
    "kind", "dtype", "change", "set", "verdict", "exit_code", "texts", "difference", "low", "high",
    "same_token_first", "seconds",
)  # fmt: skip


def row(kind, dtype, change, number, result):
    """One line of the CSV."""
    (length,) = result.lengths
    whole = length.equivalence.whole
    numbers = (whole.difference, whole.low, whole.high, length.agreement.value)
    return (
        kind, dtype, change, number, length.verdict, result.exit_code, length.texts,
        *(f"{each:.6f}" for each in numbers), f"{result.seconds:.0f}",
    )  # fmt: skip


def null_pairs(model, folder):
    """Forty comparisons."""
    text, _ = language_reference()
    size = len(text) // SETS
    for number in range(SETS):
        (folder / f"texts-{number}.txt").write_text(text[number * size : (number + 1) * size])
    for dtype, number in itertools.product(DTYPES, range(SETS)):
        options = Options(texts=str(folder / f"texts-{number}.txt"), **NULL)
        base = folder / f"{dtype}-{number}.json"
        save_reference(f"hf:{model},dtype={dtype},threads=1", base, options)
        for change in CHANGES:
            arguments = change if "threads" in change else f"threads=1,{change}"
            result = diff(str(base), f"hf:{model},dtype={dtype},{arguments}", options)
            yield row("null pair", dtype, change, number, result)


def gate(model, folder):
    """Ten runs against one reference."""
    base = folder / "base.json"
    save_reference(f"hf:{model},dtype=float32", base, Options(**GATE))
    for change in GATE_CHANGES:
        result = diff(str(base), f"hf:{model},dtype=float32,{change}", Options(**GATE))
        yield row("gate", "float32", change, "", result)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("csv", type=Path)
    parser.add_argument("--only", choices=("null pair", "gate"))
    args = parser.parse_args()
    parts = {"null pair": null_pairs, "gate": gate}
    new = not args.csv.exists()
    with tempfile.TemporaryDirectory() as folder, args.csv.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(FIELDS)
        for name in [args.only] if args.only else parts:
            for each in parts[name](args.model, Path(folder)):
                writer.writerow(each)
                file.flush()
                print(*each, flush=True)


if __name__ == "__main__":
    main()
