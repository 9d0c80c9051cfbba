"""Does the 95% interval cover 95%, and does the mark err in at most 5%? By simulation.

Questions of a document share a success rate drawn from a Beta distribution, which gives them the
wanted intra-cluster correlation. Documents have 6 to 20 questions. Methods do not differ in truth.

    python reports/statistics/simulation.py [--runs 10000] [--json FILE]
"""

import argparse
import itertools
import json
import time
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from leval_tasks.statistics.by_document import (
    clopper_pearson,
    holm,
    logit_interval,
    ratio_of_sums,
    sign_flip_p,
)

GROUPS = (7, 15, 50, 100)
CORRELATIONS = (0.0, 0.05, 0.2)
RATES = (0.4, 0.85)
METHODS = 5  # besides the baseline
LEVEL = 0.05


def correct_answers(rng, runs, sizes, correlation, rate):
    """Right answers of each document `[..., G]`; the true mean is `rate` whatever the sizes."""
    shape = (*runs, sizes.size)
    if correlation == 0:
        rates = np.full(shape, rate)
    else:
        spread = 1 / correlation - 1
        rates = rng.beta(rate * spread, (1 - rate) * spread, size=shape)
    return rng.binomial(sizes, rates).astype(float)


def covered(mean, half, rate):
    """Whether each interval holds the truth; a set that is all right or all wrong has another."""
    inside = (mean > 0) & (mean < 1)
    ends = [logit_interval(m, h) for m, h in zip(mean[inside], half[inside], strict=True)]
    low, high = np.array(ends).T
    return float(((low <= rate) & (rate <= high)).mean())


def one_setting(groups, correlation, runs, seed, rate):
    """Coverage and false positives of one number of documents, one correlation and one rate."""
    rng = np.random.default_rng([seed, groups, int(1000 * correlation)])
    sizes = rng.integers(6, 21, groups)
    answers = correct_answers(rng, (runs, METHODS + 1), sizes, correlation, rate)
    numbers = np.repeat(np.arange(runs), groups)
    mean, stderr, df, _ = ratio_of_sums(answers[:, 0].ravel(), np.tile(sizes, runs), numbers)
    half = stats.t.ppf(0.975, df) * stderr
    naive = 1.96 * np.sqrt(mean * (1 - mean) / sizes.sum())
    p = sign_flip_p(answers[:, 1:] - answers[:, :1])
    run = pd.Series(np.repeat(np.arange(runs), METHODS))
    marked = holm(pd.Series(p.ravel()), run).le(LEVEL).groupby(run).any()
    return {
        "documents": groups,
        "correlation": correlation,
        "rate": rate,
        "coverage": covered(mean, half, rate),
        "coverage_symmetric": float((np.abs(mean - rate) <= half).mean()),
        "coverage_unclustered": float((np.abs(mean - rate) <= naive).mean()),
        "false_positives": float((p[:, 0] <= LEVEL).mean()),
        "false_positives_family": float(marked.mean()),
    }


def single_questions(n, rate, runs, seed):
    """Where each question is its own document: exact interval and McNemar's test."""
    rng = np.random.default_rng([seed, n])
    ends = np.array([clopper_pearson(k, n) for k in range(n + 1)])
    right = rng.binomial(n, rate, runs)
    low, high = ends[right].T
    discordant = rng.binomial(n, 2 * rate * (1 - rate), runs)
    wins = rng.binomial(discordant, 0.5)
    mcnemar = 2 * stats.binom.cdf(np.minimum(wins, discordant - wins), discordant, 0.5)
    return {
        "questions": n,
        "rate": rate,
        "coverage": float(((low <= rate) & (rate <= high)).mean()),
        "false_positives": float((mcnemar <= LEVEL).mean()),
    }


def simulate(runs, seed=0, groups=GROUPS, correlations=CORRELATIONS, rates=RATES):
    """All settings; a list for clustered sets and one for single questions."""
    settings = itertools.product(rates, groups, correlations)
    clustered = [one_setting(g, c, runs, seed, rate) for rate, g, c in settings]
    single = [single_questions(n, rate, runs, seed) for n in (90, 100) for rate in (0.05, 0.3)]
    return clustered, single


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--json")
    args = parser.parse_args()
    start = time.perf_counter()
    clustered, single = simulate(args.runs)
    print(f"{args.runs} runs each, {time.perf_counter() - start:.0f} s\n")
    print(
        "| Rate | Documents | Correlation | Coverage | Symmetric | Not clustered | False positives "
        f"| False positives, any of {METHODS} methods |\n|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    for row in clustered:
        numbers = [f"{100 * value:.1f}%" for value in list(row.values())[3:]]
        head = f"| {100 * row['rate']:.0f}% | {row['documents']} | {row['correlation']} | "
        print(head + " | ".join(numbers) + " |")
    print("\n| Questions | Rate | Coverage | False positives |\n|---:|---:|---:|---:|")
    for row in single:
        print(
            f"| {row['questions']} | {row['rate']} | {100 * row['coverage']:.1f}% | "
            f"{100 * row['false_positives']:.1f}% |"
        )
    if args.json:
        found = {"clustered": clustered, "single": single}
        Path(args.json).write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
