"""Finished PosGen runs on disk.

A run's folder holds `result.json` and `metrics.csv`; the folder above all runs `settings.json`.
"""

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field, FiniteFloat

from leval_leaderboard.results.fields import (
    LENIENT,
    Object,
    Outside,
    ResultsError,
    read_json,
    read_model,
)
from leval_tasks.metadata import Subtask

LEARNED = 95.0
"""Accuracy within the training length, %, from which on a rule counts as learned."""

SUBTASKS: Mapping[Subtask, str] = {
    "recursive": "Recursive",
    "cot": "CoT",
    "semi_recursive": "Semi-recursive",
}
"""The sub-tasks in the paper's order, as it prints them."""

Encoding = Literal["rope", "resonance", "yarn", "resonance_yarn"]
ENCODINGS: Mapping[Encoding, str] = {
    "rope": "RoPE",
    "resonance": "Resonance RoPE",
    "yarn": "YaRN",
    "resonance_yarn": "Resonance YaRN",
}
"""The encodings in the paper's order."""

Percent = Annotated[
    float, Field(ge=0, le=1, allow_inf_nan=False), AfterValidator(lambda share: 100 * share)
]
"""A fraction in the file, percent in here."""


class PosGenTest(Outside):
    """Accuracies within and past the training length, and of each number after the seed."""

    id_accuracy: Percent
    ood_accuracy: Percent
    by_position: tuple[Percent, ...] = Field((), strict=False)


class PosGenResult(Outside):
    """One trained and tested model; `seconds` is its share of a stack's."""

    schema_version: int = Field(ge=1)
    subtask: Subtask
    encoding: Encoding
    seed: int = Field(0, ge=0)
    test: PosGenTest
    seconds: Annotated[FiniteFloat | None, LENIENT] = None
    command: str = ""
    versions: Object = Field({})
    host: Object = Field({})


@dataclass(frozen=True)
class PosGenRun:
    """A result and where it lies."""

    folder: Path
    result: PosGenResult


@dataclass(frozen=True)
class Place:
    """An encoding on a sub-task, over its seeds; accuracies in percent.

    `deviation` is that of `ood_accuracy`, NaN with one seed.
    """

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

    def runs_of(self, subtask: Subtask, encoding: Encoding) -> list[PosGenRun]:
        """One for each seed."""
        wanted = (subtask, encoding)
        return [run for run in self.runs if (run.result.subtask, run.result.encoding) == wanted]

    @property
    def places(self) -> dict[tuple[Subtask, Encoding], Place]:
        """`(sub-task, encoding)` -> means over the seeds, in the paper's order."""
        return {
            (subtask, encoding): _place([run.result.test for run in runs])
            for subtask in SUBTASKS
            for encoding in ENCODINGS
            if (runs := self.runs_of(subtask, encoding))
        }

    @property
    def learned(self) -> set[Subtask]:
        """Sub-tasks that at least one encoding learned."""
        return {subtask for (subtask, _), place in self.places.items() if place.learned}


def _place(tests: Sequence[PosGenTest]) -> Place:
    ood = [test.ood_accuracy for test in tests]
    id_accuracy = statistics.mean(test.id_accuracy for test in tests)
    deviation = statistics.stdev(ood) if len(ood) > 1 else math.nan
    return Place(len(tests), id_accuracy, statistics.mean(ood), deviation)


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
    runs = (PosGenRun(file.parent, read_model(PosGenResult, file)) for file in files)
    return Experiment(folder.name, known, tuple(runs))


Curve = dict[float, list[float]]
"""x -> one value a seed, x ascending."""


def loss_curve(runs: Sequence[PosGenRun]) -> Curve:
    """Epoch -> validation losses of the runs that have it, nats a token.

    Raises:
        ResultsError: a run's `metrics.csv` is missing, or a loss in it is no number.
    """
    losses: dict[float, list[float]] = defaultdict(list)
    for run in runs:
        file = run.folder / "metrics.csv"
        try:
            rows = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
            points = [(float(row["epoch"]), float(row["validation_loss"])) for row in rows]
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ResultsError(f"{file}: no validation curve can be read ({error!r})") from error
        if not points or not np.isfinite(points).all():
            raise ResultsError(f"{file}: empty, or a loss in it is not finite")
        for epoch, loss in points:
            losses[epoch].append(loss)
    return dict(sorted(losses.items()))


def position_curve(runs: Sequence[PosGenRun], first: int) -> Curve:
    """Position -> accuracies of the runs in percent; the first one stands at `first`.

    Raises:
        ResultsError: a run has none, or they have different lengths.
    """
    accuracies = [run.result.test.by_position for run in runs]
    lengths = {len(each) for each in accuracies}
    if lengths == {0} or len(lengths) > 1:
        raise ResultsError(
            f"{runs[0].folder.parent}: results without accuracies by position, or of different "
            "lengths; train these runs again"
        )
    columns = zip(*accuracies, strict=True)
    return {float(at): list(values) for at, values in enumerate(columns, first)}
