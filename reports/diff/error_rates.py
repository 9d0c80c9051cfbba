"""How often `diff` is wrong: real differences, resampled, with true differences put in.

    python reports/diff/error_rates.py reports/diff/fp8_kv_differences.csv

The differences are those between vLLM's default cache and its float8 cache: sums over blocks of 64
tokens of eight documents of 2,048. A sample draws documents with replacement, rotates each by a
random
number of blocks, takes the mean out and puts the true difference in. `these documents`: the mean of
each text is taken out; `documents like these`: that of all documents together, so that documents
differ.
"""

import argparse
import csv
from collections import Counter
from pathlib import Path

import numpy as np

from leval_tasks.statistics.difference import difference_bins, verdict_of

BLOCK = 64
TRUE = (0.0, 0.005, 0.01, 0.02)
TEXTS = (2, 4, 8, 16)


def means(path):
    """Mean difference of each block, `[documents, blocks]`."""
    with Path(path).open(newline="") as file:
        rows = list(csv.DictReader(file))
    documents = {}
    for row in rows:
        documents.setdefault(row["text"], []).append(float(row["difference"]) / BLOCK)
    return np.array(list(documents.values()))


def sampled(blocks, documents, rng):
    """Blocks of drawn documents, each rotated, as differences of tokens `[documents, tokens]`."""
    drawn = blocks[rng.integers(0, len(blocks), documents)]
    rotated = [np.roll(each, rng.integers(each.size)) for each in drawn]
    return np.repeat(rotated, BLOCK, axis=1)


def rates(blocks, documents, true, runs, rng):
    """Share of samples with each verdict."""
    found = Counter(
        verdict_of(difference_bins(sampled(blocks, documents, rng) + true, 0)) for _ in range(runs)
    )
    return {name: found[name] / runs for name in ("same", "worse", "better", "not decided")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv")
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found, rng = means(args.csv), np.random.default_rng(args.seed)
    pools = {
        "these documents": found - found.mean(axis=1, keepdims=True),
        "documents like these": found - found.mean(),
        "the same, mirrored": found.mean() - found,
    }
    print("| samples of | documents | true difference | same | worse | better | not decided |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, blocks in pools.items():
        for documents in TEXTS:
            for true in TRUE:
                shares = rates(blocks, documents, true, args.runs, rng).values()
                runs = " | ".join(f"{100 * share:.1f} %" for share in shares)
                print(f"| {name} | {documents} | {true:g} | {runs} |", flush=True)


if __name__ == "__main__":
    main()
