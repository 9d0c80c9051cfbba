"""PosGen: the paper's Table 1 beside the published numbers, crossed tests, pairs and halves."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from leval_harness.analysis.labels import counted
from leval_harness.analysis.posgen import HALVES, SeedComparison, halves_record
from leval_harness.old_results.posgen import LEARNED, SUBTASKS, Experiment, Place
from leval_harness.old_tables.model import (
    NOTHING,
    Block,
    Cell,
    Column,
    Row,
    Table,
    number_cell,
    ranked,
    text_columns,
)
from leval_harness.old_tables.notes import provenance_notes
from leval_harness.old_tables.published import (
    BELOW_CEILING,
    CEILING,
    PUBLISHED_MODULUS,
    SOURCE,
    TABLE_1,
    published_accuracy,
    published_of,
)
from leval_tasks.metadata import Subtask
from leval_tasks.posgen.encodings import ENCODINGS, PUBLISHED, Pair, Reading, published_pairs

NOTES = (
    "Accuracy on tokens past the training length, %; ID: on tokens within it; ± standard deviation "
    "over seeds",
    f"not learned: in-distribution accuracy below {LEARNED:g}%; such a model says nothing of "
    "longer sequences. Means are over the seeds that learned; where none did the number is not "
    "compared",
    "Bold, underlined: best and second among what was learned in a block",
)
ARROW = (
    "A → B: trained with A, tested with B; (code): YaRN as the authors' code has it, switched on "
    "for the test"
)
COMPARED = ("Method", "Baseline", "Seeds", "Method %", "Baseline %", "Difference", "95% low",
            "95% high", "p", "p (Holm)", "Wins", "Losses")  # fmt: skip


def posgen_table(experiments: Sequence[Experiment]) -> Table:
    """Encodings down, sub-tasks across: accuracy past the training length, and within it."""
    columns = [Column("Encoding", numeric=False), Column("Seeds")]
    for title in SUBTASKS.values():
        columns += [Column(title), Column(f"{title} ID")]
    notes = [*NOTES, *(note for each in experiments for note in _distances(each))]
    if any(each.tested != each.trained for one in experiments for each in one.pairs):
        notes.insert(0, ARROW)
    notes.append(f"† {SOURCE.format('Table 1')}; there ± is the variance over 5 seeds")
    notes.append(f"† {BELOW_CEILING}")
    for experiment in experiments:
        prefix = f"{experiment.name}: " if len(experiments) > 1 else ""
        notes += [prefix + note for note in _provenance(experiment)]
    blocks = (*map(_block, experiments), _published())
    title = "PosGen, out-of-distribution accuracy, %"
    return Table(title, tuple(columns), blocks, tuple(notes))


def _block(experiment: Experiment) -> Block:
    places = experiment.places
    past = {key: _past(place) for key, place in places.items()}
    for subtask in SUBTASKS:
        learned = [key for key, place in places.items() if key[0] == subtask and place.learned]
        past |= zip(learned, ranked([past[key] for key in learned]), strict=True)
    rows = []
    for pair in experiment.pairs:
        seeds = sorted({place.seeds for (_, each), place in places.items() if each == pair})
        counts = " to ".join(dict.fromkeys((f"{seeds[0]}", f"{seeds[-1]}")))
        cells = [Cell(pair.title), Cell(counts)]
        for subtask in SUBTASKS:
            place = places.get((subtask, pair))
            cells.append(past.get((subtask, pair), NOTHING))
            cells.append(number_cell(place.id_accuracy if place else None))
        rows.append(Row(tuple(cells)))
    return Block(f"{experiment.name}: {_model(experiment.settings)}", tuple(rows))


def _past(place: Place) -> Cell:
    """Accuracy past the training length; its mark stands behind the standard deviation."""
    cell = number_cell(place.ood_accuracy, stderr=place.deviation)
    if cell.stderr_text:
        return replace(cell, stderr_text=cell.stderr_text + place.mark)
    return replace(cell, mark=place.mark)


def _published() -> Block:
    rows = []
    for name, numbers in TABLE_1.items():
        cells = [Cell(name, mark=" †"), Cell("5", 5.0)]
        for mean, variance in numbers:
            cells += [number_cell(mean, stderr=variance), Cell()]
        rows.append(Row(tuple(cells), "published"))
    return Block(f"2 layers, width 512, modulus {PUBLISHED_MODULUS} (published)", tuple(rows))


def _distances(experiment: Experiment) -> list[str]:
    """Notes of the mean distance of each reading of the protocol from the published numbers.

    There are none for another modulus, under which chance and distances are other numbers.
    """
    if _modulus(experiment.settings) != PUBLISHED_MODULUS:
        return []
    notes = []
    crossed = any(pair.trained != pair.tested for pair in experiment.pairs)
    for reading in get_args(Reading):
        gaps = [
            abs(place.ood_accuracy - published_accuracy(name, subtask))
            for name, pair in published_pairs(reading).items()
            for subtask in SUBTASKS
            if (place := experiment.places.get((subtask, pair)))
        ]
        if gaps and (crossed or reading == "text"):
            name = f"{experiment.name} (reading: {reading})" if crossed else experiment.name
            notes.append(
                f"{name}: {statistics.mean(gaps):.1f} points from the published "
                f"numbers, mean over {len(gaps)} of {len(SUBTASKS) * len(PUBLISHED)} cells"
            )
    return notes


def _modulus(settings: Mapping[str, Any]) -> Any:
    data = settings.get("data")
    return data.get("modulus", PUBLISHED_MODULUS) if isinstance(data, dict) else None


def _model(settings: Mapping[str, Any]) -> str:
    """What was trained, in words."""
    shape, data = settings.get("architecture"), settings.get("data")
    if not isinstance(shape, dict) or not isinstance(data, dict):
        return "settings unknown"
    sequences = data.get("train", 10_000)
    count = f"{sequences:,} sequences, " if isinstance(sequences, int) else ""
    taught = f"{count}{settings.get('epochs')} epochs"
    if settings.get("labels") == "rule":
        taught = "fresh numbers labelled by the rule"
    return (
        f"{shape.get('kind')}, {shape.get('layers')} layers, width {shape.get('hidden')}, "
        f"modulus {_modulus(settings)}, {taught}"
    )


def _provenance(experiment: Experiment) -> tuple[str, ...]:
    results = [run.result for run in experiment.runs]
    models = len({run.folder for run in experiment.runs})
    scale = (counted(models, "model"), _model(experiment.settings))
    seeds = (result.seed for result in results)
    return provenance_notes(results, seeds, scale, ", all runs added up")


def crossed_table(experiment: Experiment) -> Table:
    """Trained with down, tested with across: mean past the trained length, a block per sub-task."""
    places, pairs = experiment.places, experiment.pairs
    trained = [name for name in ENCODINGS if any(pair.trained == name for pair in pairs)]
    tested = [name for name in ENCODINGS if any(pair.tested == name for pair in pairs)]
    blocks = []
    for subtask, title in SUBTASKS.items():
        rows = []
        for name in trained:
            row = [places.get((subtask, Pair(name, other))) for other in tested]  # type: ignore[arg-type]
            if any(row):
                rows.append(Row((Cell(ENCODINGS[name].title), *map(_crossed, row))))
        if rows:
            blocks.append(Block(title, tuple(rows)))
    columns = text_columns(["Trained with", *(ENCODINGS[name].title for name in tested)], 1)
    notes = (
        "Accuracy past the trained length, %, mean ± standard deviation over the seeds that "
        "learned (number of seeds); tested with: columns",
    )
    return Table("PosGen: trained with × tested with", columns, tuple(blocks), notes)


def _crossed(place: Place | None) -> Cell:
    if place is None:
        return NOTHING
    cell = number_cell(place.ood_accuracy, stderr=place.deviation)
    return replace(cell, mark=place.mark or f" ({place.seeds})")


def seed_table(comparisons: Mapping[Subtask, Sequence[SeedComparison]], dropped: int) -> Table:
    """Methods minus baselines by seed, a block per sub-task; from `compare_by_seed`."""
    blocks = tuple(
        Block(SUBTASKS[subtask], tuple(map(_compared, rows)))
        for subtask, rows in comparisons.items()
    )
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
    return Table("PosGen: compared by seed", text_columns(COMPARED, 2), blocks, tuple(notes))


def _compared(row: SeedComparison) -> Row:
    found = row.difference
    cells = [Cell(row.method.title), Cell(row.baseline.title), number_cell(row.seeds, "d")]
    cells += map(number_cell, row.means)
    cells += [number_cell(each, "+.2f") for each in (found.difference, found.low, found.high)]
    cells += [Cell(f"{p:.2g}" if p >= 1e-4 else "<1e-4", p) for p in (found.p, row.p_holm)]
    cells += [number_cell(count, "d") for count in (found.wins, found.losses)]
    return Row(tuple(cells))


def halves_table(experiment: Experiment) -> Table | None:
    """Semi-recursive accuracy on each half; None where no such test has accuracies by position."""
    rows, ceiling = [], 0.0
    for pair in experiment.pairs:
        record = halves_record(experiment, "semi_recursive", pair)
        means = [record[name] for name in HALVES]
        if means[0] is not None:
            place = experiment.places["semi_recursive", pair]
            seeds = replace(number_cell(place.seeds, "d"), mark=place.mark)
            rows.append(Row((Cell(pair.title), seeds, *map(number_cell, means))))
            ceiling = record["Ceiling"] or 0.0
    if not rows:
        return None
    notes = (
        "First and second of the two numbers that share a far token, %: the second follows from "
        "near ones alone, the first needs the far one; means over the seeds that learned, over all "
        "where none did",
        f"Without the far token {ceiling:.1f}% of all numbers are the ceiling; all four published "
        f"values past the trained length lie below theirs ({CEILING})",
    )
    columns = text_columns(("Semi-recursive", "Seeds", *HALVES), 1)
    return Table("PosGen: semi-recursive by halves", columns, (Block("", tuple(rows)),), notes)


def posgen_details(experiments: Sequence[Experiment]) -> Table:
    """The same numbers at full precision, one row per place: what CSV and JSON hold."""
    records = [
        {
            "Origin": experiment.name,
            "Encoding": pair.trained,
            "Tested with": pair.tested,
            "Sub-task": subtask,
            "Seeds": float(place.seeds),
            "ID": place.id_accuracy,
            "OOD": place.ood_accuracy,
            "Deviation": place.deviation,
            "Learned": float(place.learned),
            "Published": published_of(pair, subtask),
            **halves_record(experiment, subtask, pair),
        }
        for experiment in experiments
        for (subtask, pair), place in experiment.places.items()
    ]
    rows = [Row(tuple(map(_detail, record.values()))) for record in records]
    blocks = (Block("", tuple(rows)),)
    return Table("PosGen, all numbers, %", text_columns(list(records[0]), 4), blocks)


def _detail(value: str | float | None) -> Cell:
    if isinstance(value, str):
        return Cell(value)
    return Cell() if value is None or not math.isfinite(value) else number_cell(value, ".6g")
