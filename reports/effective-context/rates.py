"""Error rates of the rule on real noise: `python rates.py > rates.md`, half a minute.

The noise of a sample is some documents' differences to the reference under YaRN x2, each rotated
by a
random number of blocks, without their mean. "These documents": without each text's own mean, so
that
the truth is that of the drawn documents. "Documents like these": without the mean of all documents.
"""

from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from leval_tasks.statistics.effective_context import (
    BLOCK,
    MARGIN,
    bin_edges,
    bin_intervals,
    context_bounds,
)

HERE = Path(__file__).parent
NATIVE = {"smollm2": 8192, "small": 2048}
SAMPLES, MOST = 2000, 300


def read(name, method):
    """Sums of the blocks of each text, `[documents, blocks]`, nats."""
    frame = pd.read_csv(HERE / f"blocks-{name}.csv")
    frame = frame[frame["tokens"] == BLOCK]
    wide = frame.pivot_table(index="text", columns="position", values=method).dropna(axis=1)
    return wide.to_numpy(), wide.columns.to_numpy()


def judged(documents, places):
    """`(no degradation up to, degradation by)` of some documents."""
    middles = np.tile(places + BLOCK / 2, len(documents))
    edges = bin_edges(int(places[0]), int(places[-1]) + BLOCK)
    tokens = np.full(middles.size, float(BLOCK))
    return context_bounds(bin_intervals(middles, documents.ravel(), tokens, edges))


def simulated(noise, places, course, count, rng):
    """Answers where every position's true mean is `course`, nats/token."""
    for _ in range(SAMPLES):
        chosen = rng.choice(len(noise), count, replace=False)
        turned = [np.roll(noise[at], rng.integers(noise.shape[1])) for at in chosen]
        yield judged(np.array(turned) + BLOCK * course, places)


def rates(name):
    """Lines of the table of one model."""
    differences, places = read(name, "yarn")
    own = differences - differences.mean(axis=1, keepdims=True)
    pool = differences - differences.mean()
    edges = bin_edges(int(places[0]), int(places[-1]) + BLOCK)
    last = places >= edges[-2]
    flat = np.ones(len(places))
    for count in (1, 2, 3, 4, 8):
        rng = np.random.default_rng(count)
        wrong = []
        for noise in (own, pool):
            found = list(simulated(noise, places, MARGIN * flat, count, rng))
            wrong += [np.mean([held is not None for held, _ in found])]
            wrong += [np.mean([broken is not None for _, broken in found])]
        right = []
        for cost in (0.02, 0.03):
            found = list(simulated(own, places, cost * flat, count, rng))
            right.append(np.mean([held == edges[-1] for held, _ in found]))
        course = np.where(last, 0.12, 0.02)
        found = list(simulated(own, places, course, count, rng))
        right.append(np.mean([broken == edges[-1] for _, broken in found]))
        shares = [f"{100 * each:.1f}%" for each in wrong] + [f"{100 * each:.0f}%" for each in right]
        yield f"| {name} | {count} | {' | '.join(shares)} |"


def drawn(name):
    """What every choice of some documents says of the reads as they are."""
    for method in ("rope", "yarn"):
        differences, places = read(name, method)
        for count in (1, 2, 3, 4):
            choices = list(combinations(range(len(differences)), count))
            rng = np.random.default_rng(0)
            kept = rng.permutation(len(choices))[:MOST]
            found = [judged(differences[list(choices[at])], places) for at in kept]
            counts = pd.Series(found).value_counts(normalize=True).head(3)
            said = [
                f"{100 * share:.0f}% up to {held or '-'}, by {broken or '-'}"
                for (held, broken), share in counts.items()
            ]
            yield f"| {name} | {method} | {count} | {'; '.join(said)} |"


def main():
    """Print both tables, and how the documents differ."""
    names = [name for name in NATIVE if (HERE / f"blocks-{name}.csv").is_file()]
    shown = [
        "| model | documents | wrongly held | wrongly broken | held, documents like these | broken, documents "
        "like these | to the end, cost 0.02 | cost 0.03 | break found |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        *(line for name in names for line in rates(name)),
        "",
        "| model | method | documents | answers of real draws |",
        "|---|---|---:|---|",
        *(line for name in names for line in drawn(name)),
    ]
    for name in names:
        for method in ("rope", "yarn"):
            differences, places = read(name, method)
            within = places < NATIVE[name]
            cost = differences[:, within].sum(axis=1) / within.sum() / BLOCK
            shown.append(
                f"\n{name}, {method}: {len(cost)} documents, cost {cost.mean():+.4f}, of the documents "
                f"{cost.min():+.4f} to {cost.max():+.4f}"
            )
    print("\n".join(shown))


if __name__ == "__main__":
    main()
