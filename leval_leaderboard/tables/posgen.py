"""The paper's Table 1 from finished PosGen runs, beside the published numbers.

A run's folder holds `result.json` and `metrics.csv`; the folder above all runs `settings.json`.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from leval_leaderboard.results import ResultsError
from leval_leaderboard.results.fields import LENIENT, Object, Outside, read_json, read_versioned
from leval_leaderboard.tables.model import Block, Cell, Column, Emphasis, Row, Table
from leval_leaderboard.tables.provenance import machine, provenance_notes
from leval_leaderboard.tables.published import SOURCE, TABLE_1

LEARNED = 95.0
SubTask = Literal["recursive", "cot", "semi_recursive"]
Encoding = Literal["rope", "resonance", "yarn", "resonance_yarn"]
SUBTASKS: dict[SubTask, str] = {
    "recursive": "Recursive",
    "cot": "CoT",
    "semi_recursive": "Semi-recursive",
}
ENCODINGS: dict[Encoding, tuple[str, str]] = {
    "rope": ("RoPE", "RoPE"),
    "resonance": ("Resonance RoPE", "Resonance RoPE"),
    "yarn": ("YaRN", "YaRN (s=4)"),
    "resonance_yarn": ("Resonance YaRN", "Resonance YaRN (s=4)"),
}
"""Our name of an encoding and the paper's."""


Fraction = Annotated[float, Field(ge=0, le=1)]


class _Test(Outside):
    id_accuracy: Fraction
    ood_accuracy: Fraction
    by_position: list[Annotated[float, Field(allow_inf_nan=False)]] = Field([])


class _ResultFile(Outside):
    """`result.json` of a trained model."""

    schema_version: int = Field(ge=1)
    subtask: SubTask
    encoding: Encoding
    seed: int = Field(0, ge=0)
    test: _Test
    seconds: Annotated[float | None, LENIENT] = None
    command: str = ""
    versions: Object = Field({})
    host: Object = Field({})


@dataclass(frozen=True)
class PosGenRun:
    """One trained and tested model.

    Accuracies are percent, `by_position` one each number after the seed, empty in older results;
    `seconds` is its share of a stack's.
    """

    subtask: SubTask
    encoding: Encoding
    seed: int
    id_accuracy: float
    ood_accuracy: float
    by_position: tuple[float, ...]
    seconds: float | None
    command: str
    versions: Mapping[str, Any]
    host: Mapping[str, Any]
    folder: Path


@dataclass(frozen=True)
class Place:
    """An encoding on a sub-task, over its seeds; `deviation` is NaN with one seed."""

    seeds: int
    id_accuracy: float
    ood_accuracy: float
    deviation: float

    @property
    def learned(self) -> bool:
        """Whether the rule was learned at the trained length; else longer ones say nothing."""
        return self.id_accuracy >= LEARNED


@dataclass(frozen=True)
class Experiment:
    """All finished runs of one output folder of `posgen train`."""

    name: str
    settings: Mapping[str, Any]
    runs: tuple[PosGenRun, ...]

    @property
    def places(self) -> dict[tuple[SubTask, Encoding], Place]:
        """`(sub-task, encoding)` -> means over the seeds, in the paper's order."""
        found = {}
        for subtask in SUBTASKS:
            for encoding in ENCODINGS:
                mine = [r for r in self.runs if (r.subtask, r.encoding) == (subtask, encoding)]
                if mine:
                    ood = [run.ood_accuracy for run in mine]
                    found[subtask, encoding] = Place(
                        len(mine),
                        statistics.mean(run.id_accuracy for run in mine),
                        statistics.mean(ood),
                        statistics.stdev(ood) if len(ood) > 1 else math.nan,
                    )
        return found


def read_experiment(folder: Path) -> Experiment:
    """The finished runs of a folder.

    Raises:
        ResultsError: there is none, a file cannot be read, or one has a newer schema.
    """
    files = sorted(folder.glob("*/*/seed-*/result.json"))
    if not files:
        raise ResultsError(f"{folder}: no finished PosGen run; start one with `posgen train`")
    settings = folder / "settings.json"
    known = read_json(settings) if settings.is_file() else {}
    return Experiment(folder.name, known, tuple(_read_run(file) for file in files))


def _read_run(file: Path) -> PosGenRun:
    record = read_versioned(_ResultFile, file)
    return PosGenRun(
        record.subtask,
        record.encoding,
        record.seed,
        100 * record.test.id_accuracy,
        100 * record.test.ood_accuracy,
        tuple(100 * value for value in record.test.by_position),
        record.seconds,
        record.command,
        record.versions,
        record.host,
        file.parent,
    )


def posgen_table(experiments: Sequence[Experiment]) -> Table:
    """Encodings down, sub-tasks across: accuracy past the training length, and within it."""
    columns = [Column("Encoding", numeric=False), Column("Seeds")]
    for title in SUBTASKS.values():
        columns += [Column(title), Column(f"{title} ID")]
    blocks = [_block(experiment) for experiment in experiments]
    notes = [
        "Accuracy on tokens past the training length, %; ID: on tokens within it; ± standard "
        "deviation over seeds",
        f"not learned: in-distribution accuracy below {LEARNED:g}%; such a number says nothing of "
        "longer sequences and is not compared",
        "Bold, underlined: best and second among what was learned in a block",
    ]
    notes += [_distance(experiment) for experiment in experiments]
    notes += [f"† {SOURCE.format('Table 1')}; there ± is the variance over 5 seeds"]
    for experiment in experiments:
        prefix = f"{experiment.name}: " if len(experiments) > 1 else ""
        notes += [prefix + note for note in _provenance(experiment)]
    return Table(
        "PosGen, out-of-distribution accuracy, %",
        tuple(columns),
        (*blocks, _published()),
        tuple(notes),
    )


def _block(experiment: Experiment) -> Block:
    places = experiment.places
    rows = []
    for encoding, (name, _) in ENCODINGS.items():
        mine = {subtask: places.get((subtask, encoding)) for subtask in SUBTASKS}
        counts = sorted({place.seeds for place in mine.values() if place is not None})
        if not counts:
            continue
        seeds = Cell(
            " to ".join(map(str, counts)) if len(counts) < 3 else f"{counts[0]} to {counts[-1]}"
        )
        cells = [Cell(name), seeds]
        for subtask, place in mine.items():
            cells += _cells(place, _emphasis(places, subtask, place))
        rows.append(Row(tuple(cells)))
    return Block(f"{experiment.name}: {_model(experiment.settings)}", tuple(rows))


def _cells(place: Place | None, emphasis: Emphasis) -> list[Cell]:
    if place is None:
        return [Cell("–"), Cell("–")]
    spread = f"{place.deviation:.2f}" if math.isfinite(place.deviation) else ""
    mark = "" if place.learned else " (not learned)"
    if spread:  # what is said of the whole number stands behind the whole number
        spread, mark = spread + mark, ""
    ood = Cell(f"{place.ood_accuracy:.2f}", place.ood_accuracy, spread, mark, emphasis)
    return [ood, Cell(f"{place.id_accuracy:.2f}", place.id_accuracy)]


def _emphasis(
    places: Mapping[tuple[SubTask, Encoding], Place], subtask: SubTask, place: Place | None
) -> Emphasis:
    """Best and second of those that learned, if there are two to compare."""
    rivals = sorted(
        {p.ood_accuracy for (s, _), p in places.items() if s == subtask and p.learned}, reverse=True
    )
    if place is None or not place.learned or len(rivals) < 2:
        return ""
    return "best" if place.ood_accuracy == rivals[0] else _second(place, rivals)


def _second(place: Place, rivals: Sequence[float]) -> Emphasis:
    return "second" if place.ood_accuracy == rivals[1] else ""


def _published() -> Block:
    rows = []
    for _, name in ENCODINGS.values():
        cells = [Cell(name, mark=" †"), Cell("5", 5.0)]
        for mean, variance in TABLE_1[name]:
            cells += [Cell(f"{mean:.2f}", mean, f"{variance:.2f}"), Cell("")]
        rows.append(Row(tuple(cells), "published"))
    return Block("2 layers, width 512, modulus 17 (published)", tuple(rows), published=True)


def _distance(experiment: Experiment) -> str:
    """How far a reading of the protocol is from the published numbers, learned or not."""
    gaps = [
        abs(place.ood_accuracy - published_accuracy(encoding, subtask))
        for (subtask, encoding), place in experiment.places.items()
    ]
    return (
        f"{experiment.name}: {statistics.mean(gaps):.1f} points from the published numbers, mean "
        f"over {len(gaps)} of {len(SUBTASKS) * len(ENCODINGS)} cells"
    )


def published_accuracy(encoding: Encoding, subtask: SubTask) -> float:
    """The paper's out-of-distribution accuracy, %."""
    return TABLE_1[ENCODINGS[encoding][1]][list(SUBTASKS).index(subtask)][0]


def _model(settings: Mapping[str, Any]) -> str:
    """What was trained, in words; empty settings (an older folder) say so."""
    shape, data = settings.get("architecture"), settings.get("data")
    if not isinstance(shape, dict) or not isinstance(data, dict):
        return "settings unknown"
    sequences = data.get("train", 10_000)
    parts = [
        f"{shape.get('kind')}, {shape.get('layers')} layers, width {shape.get('hidden')}",
        f"modulus {data.get('modulus', 17)}",
        f"{sequences:,} sequences" if isinstance(sequences, int) else "",
        f"{settings.get('epochs')} epochs",
    ]
    return ", ".join(part for part in parts if part)


def _provenance(experiment: Experiment) -> tuple[str, ...]:
    runs = experiment.runs
    seconds = [run.seconds for run in runs if run.seconds is not None]
    parts = [f"{len(runs)} model{'s' * (len(runs) > 1)}, {_model(experiment.settings)}"]
    parts += sorted({machine(run.host) for run in runs} - {""})
    parts += [f"{sum(seconds) / 60:.0f} minutes, all runs added up"] if seconds else []
    return provenance_notes(
        (run.command for run in runs),
        (run.versions for run in runs),
        (run.seed for run in runs),
        ", ".join(parts),
    )


DETAILS = ("Origin", "Encoding", "Sub-task", "Seeds", "ID", "OOD", "Deviation", "Learned",
           "Published")  # fmt: skip


def posgen_details(experiments: Sequence[Experiment]) -> Table:
    """The same numbers at full precision, one row a place: what CSV and JSON hold."""
    rows = []
    for experiment in experiments:
        for (subtask, encoding), place in experiment.places.items():
            numbers = [place.seeds, place.id_accuracy, place.ood_accuracy, place.deviation]
            cells = [Cell(experiment.name), Cell(encoding), Cell(subtask)]
            cells += [Cell(f"{n:.6g}", float(n)) if n == n else Cell("") for n in numbers]
            cells.append(Cell("yes" if place.learned else "no"))
            published = published_accuracy(encoding, subtask)
            rows.append(Row((*cells, Cell(f"{published:.2f}", published))))
    numeric = {"Seeds", "ID", "OOD", "Deviation", "Published"}
    columns = tuple(Column(name, numeric=name in numeric) for name in DETAILS)
    return Table("PosGen, all numbers, %", columns, (Block("", tuple(rows)),))
