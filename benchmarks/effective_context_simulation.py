"""Error rates of the effective context length, by simulation on real blocks.

A sample is a few texts. The gain of a text at a position is the scenario's mean at that position,
what is peculiar to the text, and noise: stretches of at least four adjacent real 512-token blocks
of real texts (clipped gains less the mean of their text), so that adjacent blocks are as alike as
they are in real text. The truth of "these texts" is the mean over the drawn
texts of their own processes, bin by bin; that of "texts like these" the population's.

    python benchmarks/effective_context_simulation.py --blocks CSV [--runs 2000] [--json FILE]

CSV has the columns method, text, block and gain: nats a token of each 512-token block past the
first short window, from positions where the model reads without loss.

"Too long": more is shown than is true. "Covered": the interval from `shown` to `refused` holds the
true length. "Part shown": of the true length. "Break within a bin": refused at most a bin late.
"""

import argparse
import csv
import itertools
import json
import time
from pathlib import Path

import numpy as np

from leval_tasks.statistics.effective_context import BLOCK, bin_edges
from leval_tasks.statistics.skewed_t import MARGIN, REFUSED_AT, SHOWN_AT, SkewedMean

START, LONGEST = 2048, 12288
EDGES = bin_edges(START, LONGEST)
ENDS = np.arange(START + BLOCK, LONGEST + 1, BLOCK)
TEXTS = (3, 4, 8, 13, 16, 32)
STRETCH = 4
SCENARIOS = (
    "gains throughout",
    "break",
    "slow decay",
    "one text in four loses",
    "no effect",
    "heavy tails",
    "loses the margin",
)
OWN_SPREAD = 0.02  # nats; standard deviation between texts of the real mean gains, see `main`


def real_blocks(path):
    """Residuals `[G][B]` of each real text's blocks about the mean of all, nats a token."""
    texts = {}
    with Path(path).open() as file:
        for row in csv.DictReader(file):
            texts.setdefault((row["method"], row["text"]), []).append(float(row["gain"]))
    return [np.array(each) for each in texts.values()]


def noise(rng, blocks, runs, texts):
    """Stretches of adjacent real blocks, one after the other, `[runs, texts, B]`.

    A text goes on from its end at its beginning, so that every block is drawn as often as any other
    and the noise has a mean of zero.
    """
    pool = np.stack([each - each.mean() for each in blocks])
    out = np.empty((runs, texts, ENDS.size))
    at = 0
    while at < ENDS.size:
        length = STRETCH + int(rng.integers(0, 3))
        who = rng.integers(0, pool.shape[0], (runs, texts))
        first = rng.integers(0, pool.shape[1], (runs, texts))
        stretch = pool[who[..., None], (first[..., None] + np.arange(length)) % pool.shape[1]]
        out[..., at : at + length] = stretch[..., : ENDS.size - at]
        at += length
    return out


def process_means(rng, name, runs, texts):
    """Mean gain of each text's process `[runs, texts, B]`, and the population's `[B]`."""
    own = OWN_SPREAD * rng.normal(size=(runs, texts, 1))
    position = (ENDS - START) / (LONGEST - START)
    flat = np.zeros(ENDS.size)
    if name == "gains throughout":
        mean = flat + 0.05
    elif name == "break":
        mean = np.where(ENDS > 9728, -0.6, 0.05)
    elif name == "slow decay":
        mean = 0.06 - 0.12 * position
    elif name == "one text in four loses":
        loses = rng.random((runs, texts, 1)) < 0.25
        late = np.where(ENDS > 8192, -0.3, 0.0)
        return 0.05 + own + loses * late, 0.05 + 0.25 * late
    elif name == "no effect":
        mean, own = flat, own * 0.1
    elif name == "heavy tails":
        heavy = rng.standard_t(3, size=(runs, texts, 1)) / np.sqrt(3)
        mean, own = flat + 0.05, OWN_SPREAD * heavy
    else:
        mean, own = np.where(ENDS > 8192, -MARGIN, 0.02), own * 0.25
    return mean + own, mean


def in_bins(values):
    """Mean over the blocks of each bin, `[..., K]`."""
    middle = ENDS - BLOCK / 2
    parts = [(middle > a) & (middle <= b) for a, b in itertools.pairwise(EDGES)]
    return np.stack([values[..., part].mean(axis=-1) for part in parts], axis=-1)


def p_values(gains, threshold, texts_as_units):
    """Both tests' p in each bin, `[runs, K]` each."""
    middle = ENDS - BLOCK / 2
    found = []
    for a, b in itertools.pairwise(EDGES):
        part = gains[..., (middle > a) & (middle <= b)] * BLOCK
        if texts_as_units:
            sums, tokens = part.sum(axis=-1), np.full(part.shape[1], part.shape[2] * BLOCK)
        else:
            sums = part.reshape(part.shape[0], -1)
            tokens = np.full(sums.shape[1], BLOCK)
        found.append(SkewedMean.of(-sums, tokens.astype(float)).one_sided(-threshold))
    above, below = (np.stack(each, axis=-1) for each in zip(*found, strict=True))
    return above, below


def true_bins(means, threshold):
    """Bins in order whose true mean lies above the threshold, `[runs]`."""
    return np.cumprod(means > threshold + 1e-12, axis=-1).sum(axis=-1)


def one_setting(blocks, name, texts, runs, texts_as_units, seed=0):
    """Error rates and answers of one scenario and number of texts."""
    rng = np.random.default_rng([seed, SCENARIOS.index(name), texts, int(texts_as_units)])
    means, population = process_means(rng, name, runs, texts)
    gains = means + noise(rng, blocks, runs, texts)
    row = {"scenario": name, "texts": texts, "units": "texts" if texts_as_units else "blocks"}
    truth = np.broadcast_to(population, means.shape) if texts_as_units else means
    for kind, threshold in (("no degradation", -MARGIN), ("benefits", MARGIN)):
        true = true_bins(in_bins(truth.mean(axis=1)), threshold)
        above, below = p_values(gains, threshold, texts_as_units)
        shown = np.cumprod(above <= SHOWN_AT, axis=-1).sum(axis=-1)
        count = np.arange(1, below.shape[-1] + 1)
        smallest = np.minimum.accumulate(below, axis=-1)
        refused = smallest <= REFUSED_AT / count
        first = np.where(refused.any(axis=-1), refused.argmax(axis=-1), below.shape[-1])
        whole = true == below.shape[-1]
        part = (shown / np.maximum(true, 1))[true > 0]
        row[kind] = {
            "too_long": float((shown > true).mean()),
            "covered": float(((shown <= true) & (true <= first)).mean()),
            "shown": float(part.mean()) if part.size else 0.0,
            "found_break": None if whole.all() else float((first <= true + 1)[~whole].mean()),
        }
    return row


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--blocks", required=True)
    parser.add_argument("--json")
    args = parser.parse_args()
    blocks = real_blocks(args.blocks)
    start = time.perf_counter()
    settings = itertools.product(SCENARIOS, TEXTS, (False, True))
    rows = [one_setting(blocks, n, g, args.runs, t) for n, g, t in settings]
    print(f"{args.runs} samples each, {time.perf_counter() - start:.0f} s")
    for kind in ("no degradation", "benefits"):
        print(f"\n{kind}\n")
        print("| scenario | units | texts | too long | covered | part shown | break within a bin |")
        print("|---|---|---:|---:|---:|---:|---:|")
        for row in rows:
            r = row[kind]
            found = "" if r["found_break"] is None else f"{r['found_break']:.0%}"
            print(
                f"| {row['scenario']} | {row['units']} | {row['texts']} | {r['too_long']:.1%} | "
                f"{r['covered']:.1%} | {r['shown']:.0%} | {found} |"
            )
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
