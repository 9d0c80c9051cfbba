"""Error rates of the sequential equivalence test, by simulation on resampled real differences.

    python benchmarks/equivalence_simulation.py benchmarks/data/fp8_kv_differences.csv [--runs 2000]

The CSV has the columns text, block and difference: sums of the token differences of a real pair of
setups over blocks of 64 tokens. A simulated text is a real text drawn with replacement, less the
mean of all texts at its position. Its blocks are drawn with replacement within a bin of position,
so that texts differ as real ones do, and so do the stretches within one. The true difference of a
scenario is added. Printed: the share of each verdict, and the texts read.

Some scenarios have a tenth of the spread: two setups that differ by rounding alone do not differ as
two kinds of cache do. In "halves opposed" a text that is worse than others in its first half is
better in its second one: the tests of the bins depend negatively, for which no theory says that
Hochberg's procedure holds. In "mirrored" high texts become low ones, for the skewness.
"""

import argparse
import csv
import itertools
import json
from pathlib import Path

import numpy as np
from leval_tasks.statistics.equivalence import bin_edges, equivalence, looks_at

BLOCK = 64


def halves(p):
    """Factor of the spread: 1 in the first half, -1 in the second."""
    return np.where(p < p.mean(), 1.0, -1.0)


SCENARIOS = {
    # name: (difference by position, factor of the spread, also by position)
    "none": (lambda p: 0 * p, 1.0),
    "none, mirrored": (lambda p: 0 * p, -1.0),
    "none, halves opposed": (lambda p: 0 * p, halves),
    "none, a tenth of the spread": (lambda p: 0 * p, 0.1),
    "0.005 everywhere": (lambda p: 0 * p + 0.005, 1.0),
    "0.02 everywhere": (lambda p: 0 * p + 0.02, 1.0),
    "0.02 on average, growing": (lambda p: 0.02 * p / p.mean(), 1.0),
    "0.04 in the last half": (lambda p: 0.04 * (p >= p.mean()), 1.0),
    "0.02 everywhere, mirrored": (lambda p: 0 * p + 0.02, -1.0),
    "0.02 everywhere, halves opposed": (lambda p: 0 * p + 0.02, halves),
    "0.02 better": (lambda p: 0 * p - 0.02, 1.0),
    "the margin, 0.01": (lambda p: 0 * p + 0.01, 1.0),
    "the margin, a tenth of the spread": (lambda p: 0 * p + 0.01, 0.1),
}


def real_blocks(path):
    """Block sums `[G, B]` of the real texts."""
    texts = {}
    with Path(path).open() as file:
        for row in csv.DictReader(file):
            texts.setdefault(row["text"], []).append(float(row["difference"]))
    return np.array(list(texts.values()))


def samples(rng, blocks, edges, runs, texts):
    """Simulated residuals `[runs, texts, B]` about the mean of all texts by position."""
    residuals = blocks - blocks.mean(axis=0)
    who = rng.integers(0, len(blocks), (runs, texts))
    drawn = np.empty((runs, texts, blocks.shape[1]))
    for start, end in itertools.pairwise(np.array(edges) // BLOCK):
        which = rng.integers(start, end, (runs, texts, end - start))
        drawn[..., start:end] = residuals[who[..., None], which]
    # What was drawn is centred on the mean over the real texts of each bin, which is zero.
    return drawn


def verdict_of(sample, edges, margin):
    """The verdict of the sequential rule and the number of texts that it took."""
    for look in looks_at(len(sample)):
        tokens = np.repeat(sample[: look.texts] / BLOCK, BLOCK, axis=1)[:, 1:]
        found = equivalence(tokens, edges, margin=margin, share=look.share, last=look.last)
        if found.verdict != "undecided":
            break
    return found.verdict, look.texts


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("blocks", type=Path)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--texts", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--margin", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    blocks, rows = real_blocks(args.blocks), []
    means = blocks.mean(axis=1) / BLOCK
    edges = bin_edges(BLOCK * blocks.shape[1])
    positions = np.arange(BLOCK / 2, edges[-1], BLOCK)
    spread = f"mean {means.mean():+.4f}, standard deviation between texts {means.std(ddof=1):.4f}"
    print(f"{len(blocks)} real texts of {edges[-1]} tokens, nats a token: {spread}")
    print("| true difference | texts | same | worse | better | undecided | texts read, mean |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for (name, (mean, scale)), texts in itertools.product(SCENARIOS.items(), args.texts):
        rng = np.random.default_rng(args.seed)
        scale = scale(positions) if callable(scale) else scale
        drawn = scale * samples(rng, blocks, edges, args.runs, texts) + BLOCK * mean(positions)
        found = [verdict_of(each, edges, args.margin) for each in drawn]
        share = {
            verdict: sum(each == verdict for each, _ in found) / args.runs
            for verdict in ("same", "worse", "better", "undecided")
        }
        read = float(np.mean([size for _, size in found]))
        rows.append({"scenario": name, "texts": texts, "runs": args.runs, **share, "read": read})
        cells = [f"{100 * each:.1f} %" for each in share.values()]
        print(f"| {name} | {texts} | {' | '.join(cells)} | {read:.1f} |", flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
