"""PosGen: trained with × tested with, pairs compared by seed, the semi-recursive halves."""

import math
import statistics
from collections.abc import Sequence
from itertools import chain

import numpy as np

from leval_harness.analysis.blocks import counted
from leval_harness.results.fields import ResultsError
from leval_harness.results.posgen import (
    LEARNED,
    SUBTASKS,
    Experiment,
    PosGenTest,
)
from leval_harness.tables.cells import NOTHING
from leval_harness.tables.model import Block, Cell, Column, Row, Table
from leval_tasks.metadata import Subtask
from leval_tasks.posgen.encodings import ENCODINGS, Pair
from leval_tasks.statistics.paired import Difference, compare_scores, holm

COMPARED = ("Method", "Baseline", "Seeds", "Method %", "Baseline %", "Difference", "95% low",
            "95% high", "p", "p (Holm)", "Wins", "Losses")  # fmt: skip
HALVES = ("ID, first", "ID, second", "OOD, first", "OOD, second")


def crossed_table(experiment: Experiment) -> Table:
    """Trained with down, tested with across: mean past the trained length, a block a sub-task."""
    places = experiment.places
    tested = [n for n in ENCODINGS if any(pair.tested == n for pair in experiment.pairs)]
    trained = [n for n in ENCODINGS if any(pair.trained == n for pair in experiment.pairs)]
    columns = [Column("Trained with", numeric=False)]
    columns += [Column(ENCODINGS[name].title) for name in tested]
    blocks = []
    for subtask, title in SUBTASKS.items():
        rows = []
        for name in trained:
            row = [places.get((subtask, Pair(name, other))) for other in tested]  # type: ignore[arg-type]
            if any(row):
                cells = [
                    NOTHING
                    if place is None
                    else Cell(
                        f"{place.ood_accuracy:.2f}",
                        place.ood_accuracy,
                        f"{place.deviation:.2f}" if math.isfinite(place.deviation) else "",
                        place.mark or f" ({place.seeds})",
                    )
                    for place in row
                ]
                rows.append(Row((Cell(ENCODINGS[name].title), *cells)))
        if rows:
            blocks.append(Block(title, tuple(rows)))
    notes = (
        "Accuracy past the trained length, %, mean ± standard deviation over the seeds that "
        "learned (number of seeds); tested with: columns",
    )
    return Table("PosGen: trained with × tested with", tuple(columns), tuple(blocks), notes)


def comparison_table(experiment: Experiment, pairs: Sequence[tuple[Pair, Pair]]) -> Table:
    """Methods minus baselines by seed, a block a sub-task.

    Args:
        experiment: with tests of all of them.
        pairs: (method, baseline).

    Raises:
        SettingError: there is no test of a pair.
        ResultsError: no pair has two seeds in common.
    """
    experiment.refuse_unknown(chain.from_iterable(pairs))
    blocks, dropped = [], 0
    for subtask, title in SUBTASKS.items():
        compared = []
        for method, baseline in pairs:
            both, unlearned = _by_seed(experiment, subtask, method, baseline)
            dropped += unlearned
            if len(both) > 1:
                compared.append((method, baseline, both, _difference(both)))
        corrected = holm([difference.p for *_, difference in compared])
        rows = [_row(*each, p) for each, p in zip(compared, corrected, strict=True)]
        if rows:
            blocks.append(Block(title, tuple(rows)))
    if not blocks:
        raise ResultsError(f"{experiment.name}: no two seeds in common of what is compared")
    notes = [
        "Difference: method minus baseline past the trained length, points, mean over seeds that "
        "both have; 95% interval: Student's t over seeds; p: sign flips over seeds, (Holm) "
        "corrected over the rows of a sub-task; wins and losses: seeds",
    ]
    if dropped:
        notes.append(
            f"{counted(dropped, 'pair')} of a seed left out: one of the two is below {LEARNED:g}% "
            "within the trained length under the encoding it was trained with"
        )
    columns = tuple(Column(name, numeric=at >= 2) for at, name in enumerate(COMPARED))
    return Table("PosGen: compared by seed", columns, tuple(blocks), tuple(notes))


def _by_seed(
    experiment: Experiment, subtask: Subtask, method: Pair, baseline: Pair
) -> tuple[list[tuple[float, float]], int]:
    """Accuracies of method and baseline of each seed, and how many a failed training left out."""
    ours, theirs = (
        {run.result.seed: run.result.test.ood_accuracy for run in experiment.runs_of(subtask, pair)}
        for pair in (method, baseline)
    )
    seeds = set(ours) & set(theirs)
    learned = seeds & experiment.able(subtask, method) & experiment.able(subtask, baseline)
    return [(ours[seed], theirs[seed]) for seed in sorted(learned)], len(seeds) - len(learned)


def _difference(both: Sequence[tuple[float, float]]) -> Difference:
    method, baseline = np.array(both, dtype=np.float64).T
    return compare_scores(method, baseline, np.arange(len(both)))


def _row(
    method: Pair,
    baseline: Pair,
    both: Sequence[tuple[float, float]],
    found: Difference,
    corrected: float,
) -> Row:
    means = [statistics.mean(side) for side in zip(*both, strict=True)]
    numbers = [*means, found.difference, found.low, found.high]
    cells = [Cell(method.title), Cell(baseline.title), Cell(f"{len(both)}", float(len(both)))]
    cells += [
        NOTHING if number is None else Cell(f"{number:+.2f}" if at > 1 else f"{number:.2f}", number)
        for at, number in enumerate(numbers)
    ]
    cells += [Cell(f"{p:.2g}" if p >= 1e-4 else "<1e-4", p) for p in (found.p, float(corrected))]
    cells += [Cell(f"{count}", float(count)) for count in (found.wins, found.losses)]
    return Row(tuple(cells))


def ceiling(modulus: int) -> float:
    """Accuracy on semi-recursive sequences without the far token, %.

    Every second number follows from near ones, and the others are guessed.
    """
    return 100 * (1 + 1 / modulus) / 2


def halves(test: PosGenTest, inside: int) -> tuple[float, float, float, float] | None:
    """Accuracy on the first and second of the numbers that share a far token, %.

    Those of the first `inside` numbers after the seed, which are within the trained length, then
    those of the rest; None where no accuracies by position are known.
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
    """Means of `halves` by the titles of `HALVES`, and the ceiling; None: unknown.

    Over the seeds that learned the rule, or over all where none did.
    """
    known: list[tuple[float, float, float, float]] = []
    modulus = 0
    if subtask == "semi_recursive":
        data = experiment.settings.get("data", {})
        modulus = data.get("modulus", 17)
        inside = data.get("train_length", 64) - data.get("far", 1) - data.get("near", 3)
        runs = experiment.learned_runs(subtask, pair) or experiment.runs_of(subtask, pair)
        known = [each for run in runs if (each := halves(run.result.test, inside))]
    means = [statistics.mean(column) for column in zip(*known, strict=True)] or [None] * 4
    limit = ceiling(modulus) if modulus else None
    return {**dict(zip(HALVES, means, strict=True)), "Ceiling": limit}


def halves_table(experiment: Experiment) -> Table | None:
    """Semi-recursive accuracy on each half; None where no such test has accuracies by position."""
    rows, limit = [], 0.0
    places = experiment.places
    for pair in experiment.pairs:
        record = halves_record(experiment, "semi_recursive", pair)
        means = [record[name] for name in HALVES]
        if means[0] is not None:
            place = places["semi_recursive", pair]
            seeds = Cell(f"{place.seeds}", float(place.seeds), "", place.mark)
            numbers = [Cell(f"{mean:.2f}", mean) for mean in means if mean is not None]
            rows.append(Row((Cell(pair.title), seeds, *numbers)))
            limit = record["Ceiling"] or 0.0
    if not rows:
        return None
    notes = (
        "First and second of the two numbers that share a far token, %: the second follows from "
        "near ones alone, the first needs the far one; means over the seeds that learned, over all "
        "where none did",
        f"Without the far token {limit:.1f}% of all numbers are the ceiling; all four published "
        "values past the trained length lie below theirs (52.9%)",
    )
    titles = ("Semi-recursive", "Seeds", *HALVES)
    columns = tuple(Column(name, numeric=at > 0) for at, name in enumerate(titles))
    return Table("PosGen: semi-recursive by halves", columns, (Block("", tuple(rows)),), notes)
