"""The paper's Table 1 from finished PosGen runs, beside the published numbers."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from leval_harness.analysis.blocks import counted
from leval_harness.analysis.posgen_pairs import halves_record
from leval_harness.analysis.provenance import machine, provenance_notes
from leval_harness.analysis.published import BELOW_CEILING, PUBLISHED_MODULUS, SOURCE, TABLE_1
from leval_harness.results.posgen import (
    LEARNED,
    SUBTASKS,
    Experiment,
    Place,
)
from leval_harness.tables.cells import NOTHING
from leval_harness.tables.model import Block, Cell, Column, Row, Table, ranked
from leval_tasks.metadata import Subtask
from leval_tasks.posgen.encodings import PUBLISHED, Name, Pair, Reading, published_pairs

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
        cells = [
            Cell(pair.title),
            Cell(" to ".join(dict.fromkeys((f"{seeds[0]}", f"{seeds[-1]}")))),
        ]
        for subtask in SUBTASKS:
            cells += [past.get((subtask, pair), NOTHING), NOTHING]
            if place := places.get((subtask, pair)):
                cells[-1] = Cell(f"{place.id_accuracy:.2f}", place.id_accuracy)
        rows.append(Row(tuple(cells)))
    return Block(f"{experiment.name}: {_model(experiment.settings)}", tuple(rows))


def _past(place: Place) -> Cell:
    """Accuracy past the training length; what is said of it stands behind the whole number."""
    text = f"{place.ood_accuracy:.2f}"
    if math.isfinite(place.deviation):
        return Cell(text, place.ood_accuracy, f"{place.deviation:.2f}{place.mark}")
    return Cell(text, place.ood_accuracy, "", place.mark)


def _published() -> Block:
    rows = []
    for name, numbers in TABLE_1.items():
        cells = [Cell(name, mark=" †"), Cell("5", 5.0)]
        for mean, variance in numbers:
            cells += [Cell(f"{mean:.2f}", mean, f"{variance:.2f}"), Cell()]
        rows.append(Row(tuple(cells), "published"))
    return Block(f"2 layers, width 512, modulus {PUBLISHED_MODULUS} (published)", tuple(rows))


def _distances(experiment: Experiment) -> list[str]:
    """How far readings of the protocol are from the published numbers, learned or not.

    Under another modulus chance is another number, and so is a distance.
    """
    if _modulus(experiment.settings) != PUBLISHED_MODULUS:
        return []
    notes = []
    for reading in get_args(Reading):
        gaps = [
            abs(place.ood_accuracy - published_accuracy(name, subtask))
            for name, pair in published_pairs(reading).items()
            for subtask in SUBTASKS
            if (place := experiment.places.get((subtask, pair)))
        ]
        crossed = any(pair.trained != pair.tested for pair in experiment.pairs)
        said = f" (reading: {reading})" if crossed else ""
        if gaps and (crossed or reading == "text"):
            notes.append(
                f"{experiment.name}{said}: {statistics.mean(gaps):.1f} points from the published "
                f"numbers, mean over {len(gaps)} of {len(SUBTASKS) * len(PUBLISHED)} cells"
            )
    return notes


def published_accuracy(encoding: Name, subtask: Subtask) -> float:
    """The paper's out-of-distribution accuracy, %, of one of its four encodings."""
    row = dict(zip(PUBLISHED, TABLE_1.values(), strict=True))[encoding]
    return dict(zip(SUBTASKS, row, strict=True))[subtask][0]


def published_of(pair: Pair, subtask: Subtask) -> float | None:
    """The paper's number that a pair is a reading of, %; None where it is of neither reading."""
    for reading in get_args(Reading):
        for name, each in published_pairs(reading).items():
            if each == pair:
                return published_accuracy(name, subtask)
    return None


def _modulus(settings: Mapping[str, Any]) -> Any:
    data = settings.get("data")
    return data.get("modulus", PUBLISHED_MODULUS) if isinstance(data, dict) else None


def _model(settings: Mapping[str, Any]) -> str:
    """What was trained, in words; empty settings (an older folder) say so."""
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
    seconds = [result.seconds for result in results if result.seconds is not None]
    models = len({run.folder for run in experiment.runs})
    parts = [counted(models, "model"), _model(experiment.settings)]
    parts += sorted({machine(result.host) for result in results} - {""})
    parts += [f"{sum(seconds) / 60:.0f} minutes, all runs added up"] if seconds else []
    return provenance_notes(
        (result.command for result in results),
        (result.versions for result in results),
        (result.seed for result in results),
        ", ".join(parts),
    )


def posgen_details(experiments: Sequence[Experiment]) -> Table:
    """The same numbers at full precision, one row a place: what CSV and JSON hold."""
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
    columns = [Column(name, not isinstance(value, str)) for name, value in records[0].items()]
    rows = [Row(tuple(_detail(value) for value in record.values())) for record in records]
    return Table("PosGen, all numbers, %", tuple(columns), (Block("", tuple(rows)),))


def _detail(value: str | float | None) -> Cell:
    if value is None:
        return Cell()
    if isinstance(value, str):
        return Cell(value)
    return Cell(f"{value:.6g}", value) if math.isfinite(value) else Cell()
