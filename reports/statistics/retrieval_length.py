"""How often does the length by retrieval err, and how often does it decide? By simulation.

The true accuracy at each length is known, and the answers to so many questions are drawn from it.
The lower bound errs where it lies above the true length, the upper bound where it lies below.

    python reports/statistics/retrieval_length.py [--runs 10000]
"""

import argparse
import time
from functools import cache
from typing import NamedTuple

import numpy as np

from leval_tasks.statistics.retrieval import THRESHOLD, Retrieved, length_above

LENGTHS = (1024, 2048, 4096, 8192, 12288)
QUESTIONS = (24, 60, 100, 200, 400)
JUST_BELOW = THRESHOLD - 1e-9
"""An accuracy that is too low by so little that no number of questions shows it."""

OF_OWN = "own score"
AS_SET = "85.6%"

CURVES = {
    AS_SET: {
        "just reached everywhere": (THRESHOLD,) * 5,
        "just missed at 4K": (1.0, 1.0, JUST_BELOW, JUST_BELOW, JUST_BELOW),
        "just missed everywhere": (JUST_BELOW,) * 5,
        "falls from 100% to 50% at 8K": (1.0, 1.0, 1.0, 0.5, 0.0),
        "falls from 95% to 70% at 8K": (0.95, 0.95, 0.95, 0.7, 0.5),
        "100% everywhere": (1.0,) * 5,
        "95% everywhere": (0.95,) * 5,
    },
    OF_OWN: {
        "just reached everywhere": (0.9, *(THRESHOLD * 0.9,) * 4),
        "just missed at 4K": (0.9, 0.9, *(JUST_BELOW * 0.9,) * 3),
        "just missed beyond 1K": (0.9, *(JUST_BELOW * 0.9,) * 4),
        "all right at 1K, just missed beyond": (1.0, *(JUST_BELOW,) * 4),
        "falls from 100% to 50% at 8K": (1.0, 1.0, 1.0, 0.5, 0.0),
        "falls from 80% to 40% at 8K": (0.8, 0.8, 0.8, 0.4, 0.2),
        "100% everywhere": (1.0,) * 5,
        "95% everywhere": (0.95,) * 5,
        "80% everywhere": (0.8,) * 5,
    },
}
"""Form of the threshold -> name of a curve -> true accuracy at each length."""


class Rates(NamedTuple):
    """Shares of the runs.

    Attributes:
        too_long: the lower bound is above the true length.
        too_short: the upper bound is below it.
        lower_reached: the lower bound is the true length.
        decided: both bounds are.
    """

    too_long: float
    too_short: float
    lower_reached: float
    decided: float


def true_length(accuracies, form):
    """The largest length up to which every true accuracy is at least the threshold; 0 if there is none."""
    threshold = THRESHOLD
    if form == OF_OWN:
        threshold *= accuracies[0]
    reached = 0
    for length, accuracy in zip(LENGTHS, accuracies, strict=True):
        if accuracy < threshold - 1e-12:
            break
        reached = length
    return reached


@cache
def bounds(right, asked, form):
    """The bounds of one set of answers; the lower one is 0 where it is unknown."""
    counts = [
        Retrieved(length, number, asked) for length, number in zip(LENGTHS, right, strict=True)
    ]
    length = length_above(counts, of_own=form == OF_OWN)
    return length.low or 0, length.high


def rates(accuracies, asked, form, runs, seed=0):
    """How often the bounds err and decide, for so many questions at each length."""
    rng = np.random.default_rng([seed, asked])
    truth = true_length(accuracies, form)
    answers = rng.binomial(asked, accuracies, (runs, len(LENGTHS)))
    low, high = np.array([bounds(tuple(map(int, right)), asked, form) for right in answers]).T
    return Rates(
        too_long=float((low > truth).mean()),
        too_short=float((high < truth).mean()),
        lower_reached=float((low == truth).mean()),
        decided=float(((low == truth) & (high == truth)).mean()),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10_000)
    runs = parser.parse_args().runs
    start = time.perf_counter()
    print(
        "| Threshold | True accuracy | Questions | Lower bound too long | Upper bound too short "
        "| Lower bound reached | Both reached |\n|---|---|---:|---:|---:|---:|---:|"
    )
    for form, curves in CURVES.items():
        for name, accuracies in curves.items():
            for asked in QUESTIONS:
                numbers = [f"{100 * rate:.1f}%" for rate in rates(accuracies, asked, form, runs)]
                print(f"| {form} | {name} | {asked} | {' | '.join(numbers)} |")
    print(f"\n{runs} runs each, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
