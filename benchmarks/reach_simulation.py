"""Does the interval of a reach hold the true one, and how wide is it? By simulation.

A text's loss changes from each length to the next by the step's true effect, by what is peculiar to
the text (normal, or as skewed as an exponential distribution, to losses or to gains) and by the
noise of its tokens; texts have one to three targets of 512 tokens. The true reach follows from the
true effects.

    python benchmarks/reach_simulation.py [--runs 4000] [--json FILE]
"""

import argparse
import itertools
import json
import time
from pathlib import Path

import numpy as np

from leval_tasks.statistics.reach import reach_by
from leval_tasks.statistics.skewed_t import MARGIN, REFUSED_AT, SHOWN_AT, one_sided

LENGTHS = (2048, 4096, 8192, 12288, 16384)
TEXTS = (3, 4, 8, 16, 50)
TRUTHS = {
    "gains, holds, breaks": (-0.1, -0.03, 0.0, 1.2),
    "gains throughout": (-0.05, -0.05, -0.05, -0.05),
    "nothing changes": (0.0, 0.0, 0.0, 0.0),
    "breaks at once": (MARGIN, 0.0, 0.0, 0.0),
    "loses the margin": (-0.1, 0.0, MARGIN, MARGIN),
    "loses not quite the margin": (0.0099, 0.0099, 0.0099, 0.0099),
    "gains the margin": (-0.05, -MARGIN, -MARGIN, -MARGIN),
    "slips a little": (-0.05, 0.02, 0.02, 0.02),
}
SPREADS = (0.01, 0.05, 0.2)
SHAPES = ("normal", "a few lose much", "a few gain much")
TOKEN_NOISE = 0.5  # nats, of one token's difference


def changes(rng, runs, truth, texts, spread, shape):
    """Nats `[runs, K, G]` by which each text changes at each step, and tokens `[G]`."""
    tokens = 512.0 * rng.integers(1, 4, texts)
    size = (runs, len(truth), texts)
    if shape == "normal":
        own = rng.normal(size=size)
    else:
        own = (rng.exponential(size=size) - 1) * (1 if shape == "a few lose much" else -1)
    noise = TOKEN_NOISE * rng.normal(size=size) / np.sqrt(tokens)
    return (np.array(truth)[:, None] + spread * own + noise) * tokens, tokens


def true_reach(truth, threshold):
    """Place of the true reach among the lengths; an effect at the threshold is not below it."""
    return next((at for at, step in enumerate(truth) if not step < threshold), len(truth))


def one_setting(name, texts, spread, shape, runs, seed=0):
    """Coverage, false claims and width of one truth and one number of texts."""
    truth = TRUTHS[name]
    place = [list(TRUTHS).index(name), texts, int(1000 * spread), SHAPES.index(shape)]
    rng = np.random.default_rng([seed, *place])
    steps, tokens = changes(rng, runs, truth, texts, spread, shape)
    row = {"truth": name, "texts": texts, "spread": spread, "shape": shape}
    for kind, threshold in (("loss", MARGIN), ("gain", -MARGIN)):
        true = LENGTHS[true_reach(truth, threshold)]
        below, above = one_sided(steps, tokens, threshold)
        tests = zip(below.tolist(), above.tolist(), strict=True)
        found = [reach_by(*each, LENGTHS, SHOWN_AT, REFUSED_AT) for each in tests]
        low = np.array([LENGTHS.index(each.low or LENGTHS[0]) for each in found])
        high = np.array([LENGTHS.index(each.high) for each in found])
        at = LENGTHS.index(true)
        row[kind] = {
            "coverage": float(((low <= at) & (at <= high)).mean()),
            "too_long": float((low > at).mean()),
            "width": float((high - low).mean()),
            "cannot_tell": float(np.mean([each.low is None for each in found])),
            "exact": float(np.mean([each.known == true for each in found])),
        }
    return row


def simulate(runs, texts=TEXTS, truths=TRUTHS, spreads=SPREADS, shapes=SHAPES):
    """All settings."""
    settings = itertools.product(truths, spreads, shapes, texts)
    return [one_setting(name, g, spread, shape, runs) for name, spread, shape, g in settings]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=4000)
    parser.add_argument("--json")
    args = parser.parse_args()
    start = time.perf_counter()
    rows = simulate(args.runs)
    print(f"{args.runs} runs each, {time.perf_counter() - start:.0f} s\n")
    print(
        "| Truth | Texts | No loss: covered, worst | too long, worst | width | exact | cannot tell "
        "| Gain: covered, worst | false gains, worst | width | cannot tell |\n"
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    for name, texts in itertools.product(TRUTHS, TEXTS):
        part = [row for row in rows if row["truth"] == name and row["texts"] == texts]

        def worst(kind, key, pick, part=part):
            return f"{100 * pick(row[kind][key] for row in part):.1f}%"

        def mean(kind, key, style, part=part):
            return format(np.mean([row[kind][key] for row in part]), style)

        print(
            f"| {name} | {texts} | {worst('loss', 'coverage', min)} | "
            f"{worst('loss', 'too_long', max)} | {mean('loss', 'width', '.2f')} | "
            f"{mean('loss', 'exact', '.0%')} | {mean('loss', 'cannot_tell', '.0%')} | "
            f"{worst('gain', 'coverage', min)} | {worst('gain', 'too_long', max)} | "
            f"{mean('gain', 'width', '.2f')} | {mean('gain', 'cannot_tell', '.0%')} |"
        )
    for kind in ("loss", "gain"):
        for shape in SHAPES:
            part = [row[kind] for row in rows if row["shape"] == shape]
            print(
                f"\n{kind}, {shape}: covered at least {min(r['coverage'] for r in part):.1%}, "
                f"said too long at most {max(r['too_long'] for r in part):.1%}"
            )
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
