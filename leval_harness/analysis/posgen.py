"""PosGen: pairs of encodings compared by seed, and the semi-recursive sub-task by halves."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from leval_harness.old_results.fields import ResultsError
from leval_harness.old_results.posgen import SUBTASKS, Experiment, PosGenTest
from leval_tasks.metadata import Subtask
from leval_tasks.posgen.encodings import Pair
from leval_tasks.statistics.paired import Difference, compare_scores, holm

HALVES = ("ID, first", "ID, second", "OOD, first", "OOD, second")


@dataclass(frozen=True, slots=True)
class SeedComparison:
    """A method and its baseline on one sub-task, past the trained length, over common seeds.

    `means` are the accuracies of method and baseline, `difference` is between them: all in percent.
    """

    method: Pair
    baseline: Pair
    seeds: int
    means: tuple[float, float]
    difference: Difference
    p_holm: float


def compare_by_seed(
    experiment: Experiment, pairs: Sequence[tuple[Pair, Pair]]
) -> tuple[dict[Subtask, list[SeedComparison]], int]:
    """Methods against baselines by seed, Holm-corrected within each sub-task.

    Args:
        experiment: with tests of all of them.
        pairs: (method, baseline).

    Returns:
        the comparisons of each sub-task that has some, and the number of seeds of pairs that were
        left out because one of the two models did not learn the rule.

    Raises:
        SettingError: there is no test of a pair.
        ResultsError: no pair has two seeds in common.
    """
    experiment.refuse_unknown(chain.from_iterable(pairs))
    comparisons: dict[Subtask, list[SeedComparison]] = {}
    dropped = 0
    for subtask in SUBTASKS:
        compared = []
        for method, baseline in pairs:
            own, theirs = (_accuracies(experiment, subtask, pair) for pair in (method, baseline))
            seeds = set(own) & set(theirs)
            able = [experiment.able(subtask, pair) for pair in (method, baseline)]
            learned = sorted(seeds.intersection(*able))
            dropped += len(seeds) - len(learned)
            if len(learned) > 1:
                ours, base = ([side[seed] for seed in learned] for side in (own, theirs))
                seed_labels = np.arange(len(learned))
                difference = compare_scores(np.array(ours), np.array(base), seed_labels)
                means = statistics.mean(ours), statistics.mean(base)
                compared.append((method, baseline, len(learned), means, difference))
        if compared:
            corrected = holm([difference.p for *_, difference in compared]).tolist()
            comparisons[subtask] = [
                SeedComparison(*each, p) for each, p in zip(compared, corrected, strict=True)
            ]
    if not comparisons:
        raise ResultsError(f"{experiment.name}: no two seeds in common of what is compared")
    return comparisons, dropped


def _accuracies(experiment: Experiment, subtask: Subtask, pair: Pair) -> dict[int, float]:
    """Seed -> accuracy past the trained length, %."""
    results = (run.result for run in experiment.runs_of(subtask, pair))
    return {result.seed: result.test.ood_accuracy for result in results}


def ceiling(modulus: int) -> float:
    """Accuracy on semi-recursive sequences without the far token, %.

    Every second number follows from near ones, and the others are guessed.
    """
    return 100 * (1 + 1 / modulus) / 2


def halves(test: PosGenTest, inside: int) -> tuple[float, float, float, float] | None:
    """Accuracy on the first and on the second of the two numbers that share a far token, %.

    Args:
        test: a test of the semi-recursive sub-task.
        inside: how many numbers after the seed are within the trained length.

    Returns:
        both within the trained length, then both past it; None if the test has no accuracies by
        position.
    """
    values = test.by_position
    if len(values) < inside + 2:
        return None
    parts = (values[0:inside:2], values[1:inside:2], values[inside::2], values[inside + 1 :: 2])
    first, second, far_first, far_second = map(statistics.mean, parts)
    # With an odd number inside, the first number past the trained length is a second one.
    far = (far_second, far_first) if inside % 2 else (far_first, far_second)
    return first, second, *far


def halves_record(experiment: Experiment, subtask: Subtask, pair: Pair) -> dict[str, float | None]:
    """Means of `halves` by the titles of `HALVES`, and the ceiling; None if unknown.

    Over the seeds that learned the rule, or over all if none did.
    """
    if subtask != "semi_recursive":
        return dict.fromkeys((*HALVES, "Ceiling"))
    data = experiment.settings.get("data", {})
    inside = data.get("train_length", 64) - data.get("far", 1) - data.get("near", 3)
    runs = experiment.learned_runs(subtask, pair) or experiment.runs_of(subtask, pair)
    known = [each for run in runs if (each := halves(run.result.test, inside))]
    means = [statistics.mean(column) for column in zip(*known, strict=True)] or [None] * 4
    return {**dict(zip(HALVES, means, strict=True)), "Ceiling": ceiling(data.get("modulus", 17))}
