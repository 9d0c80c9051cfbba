"""Setups that must read alike: does `diff` ever call one worse?

    python reports/diff/null_pairs.py MODEL reports/diff/null_pairs.csv

Forty null pairs: a checkpoint on transformers in float32 and bfloat16, whole documents at a time,
against the same in chunks, with another number of threads, with another attention, and behind the
hook of a method that changes nothing, on four sets of documents. Documents: the language reference
that comes with Python.
"""

import argparse
import csv
import itertools
import tempfile
from pathlib import Path

from leval_harness.diff.compare import diff, save_reference
from leval_tasks.perplexity.corpora import language_reference

CHANGES = (
    "prefill_chunk=64", "prefill_chunk=100", "threads=2", "attn_implementation=eager",
    "rope=linear:factor=1",
)  # fmt: skip
SETS = 4
FIELDS = ("dtype", "change", "set", "verdict", "identical", "difference", "widest", "apart")


def rows(model, folder):
    """A row a pair."""
    text, _ = language_reference()
    size = len(text) // SETS
    for number, dtype in itertools.product(range(SETS), ("float32", "bfloat16")):
        documents, base = folder / f"documents-{number}.txt", folder / f"{dtype}-{number}.npz"
        documents.write_text(text[number * size : (number + 1) * size])
        options = {"documents": str(documents), "lengths": 128, "isolated": False}
        save_reference(f"hf:{model},dtype={dtype},threads=1", base, **options)
        for change in CHANGES:
            arguments = change if "threads" in change else f"threads=1,{change}"
            result = diff(str(base), f"hf:{model},dtype={dtype},{arguments}", **options)
            ends = [abs(end) for each in result.bins for end in (each.low, each.high)]
            numbers = (result.loss_b - result.loss_a, max(ends, default=0.0), result.apart)
            yield (
                dtype, change, number, result.verdict, result.identical,
                *(f"{each:.6f}" for each in numbers),
            )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("csv", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, args.csv.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        for row in rows(args.model, Path(folder)):
            writer.writerow(row)
            file.flush()
            print(*row, flush=True)


if __name__ == "__main__":
    main()
