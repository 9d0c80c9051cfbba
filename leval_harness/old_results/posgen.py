"""Finished PosGen runs on disk.

A run's folder holds `result.json` and `metrics.csv`, and `tested/` the tests under encodings that
the model was not trained with; the folder above all runs `settings.json`.
"""

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field, FiniteFloat

from leval_harness.old_results.fields import (
    Object,
    Outside,
    ResultsError,
    machine_of,
    read_json,
    read_model,
)
from leval_tasks.metadata import PosGenSettings, Subtask
from leval_tasks.posgen.encodings import ENCODINGS, Name, Pair
from leval_tasks.posgen.sequences import position_ranges
from resonance_vllm.errors import SettingError, shown
from resonance_vllm.files import altered
from resonance_vllm.settings import LENIENT, read

LEARNED = 95.0
"""Accuracy within the training length, %, from which on a rule counts as learned."""

SUBTASKS: Mapping[Subtask, str] = {
    "recursive": "Recursive",
    "cot": "CoT",
    "semi_recursive": "Semi-recursive",
}
"""The sub-tasks in the paper's order, as it prints them."""

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
    """One test of a trained model; `seconds` is its share of a stack's, in its first test only."""

    schema_version: int = Field(ge=1)
    subtask: Subtask
    encoding: Name
    tested_with: Name | None = None
    seed: int = Field(0, ge=0)
    test: PosGenTest
    seconds: Annotated[FiniteFloat | None, LENIENT] = None
    command: str = ""
    versions: Object = Field({})
    host: Object = Field({})
    weights: str | None = None
    files: Object = Field({})

    @property
    def pair(self) -> Pair:
        """What it was trained with and tested with."""
        return Pair(self.encoding, self.tested_with or self.encoding)

    @property
    def machine(self) -> str:
        """The GPU, or the number of CPU cores; empty where that is not known."""
        return machine_of(self.host)


@dataclass(frozen=True)
class PosGenRun:
    """A result, and the folder of its model."""

    folder: Path
    result: PosGenResult


@dataclass(frozen=True)
class Place:
    """A pair of encodings on a sub-task, over its seeds; accuracies in percent.

    `learned` counts the seeds whose model learned the rule at the trained length, under the
    encoding of training. Accuracies are means over these, for the others say nothing of longer
    sequences; over all seeds where none learned it. `deviation` is that of `ood_accuracy`, NaN of
    one model.
    """

    seeds: int
    id_accuracy: float
    ood_accuracy: float
    deviation: float
    learned: int

    @classmethod
    def of(cls, runs: Sequence[PosGenRun], learned: Sequence[PosGenRun]) -> "Place":
        """From the runs of all seeds, and those of the seeds that learned the rule."""
        tests = [run.result.test for run in learned or runs]
        ood = [test.ood_accuracy for test in tests]
        inside = statistics.mean(test.id_accuracy for test in tests)
        deviation = statistics.stdev(ood) if len(ood) > 1 else math.nan
        return cls(len(runs), inside, statistics.mean(ood), deviation, len(learned))

    @property
    def mark(self) -> str:
        """What stands behind a number: how many of the seeds learned, where some did not."""
        if not self.learned:
            return " (not learned)"
        return "" if self.learned == self.seeds else f" ({self.learned} of {self.seeds} learned)"


@dataclass(frozen=True)
class Experiment:
    """All tests of one output folder of `posgen train`."""

    name: str
    settings: Mapping[str, Any]
    runs: tuple[PosGenRun, ...]

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Trained and tested encodings, a model's own first, in the order of `ENCODINGS`."""
        order = list(ENCODINGS)
        found = {run.result.pair for run in self.runs}
        return tuple(
            sorted(found, key=lambda p: (order.index(p[0]), p[0] != p[1], order.index(p[1])))
        )

    def only(self, pairs: Collection[Pair]) -> "Experiment":
        """Its tests of some pairs.

        Raises:
            SettingError: there is no test of one of them.
        """
        self.refuse_unknown(pairs)
        runs = tuple(run for run in self.runs if not pairs or run.result.pair in pairs)
        return replace(self, runs=runs)

    def refuse_unknown(self, pairs: Iterable[Pair]) -> None:
        """Raise SettingError for a pair without a test."""
        for pair in pairs:
            if pair not in self.pairs:
                had = ", ".join(":".join(each) for each in self.pairs)
                raise SettingError(f"{self.name}: no test of {':'.join(pair)}; there are: {had}")

    def runs_of(self, subtask: Subtask, pair: Pair) -> list[PosGenRun]:
        """One for each seed."""
        wanted = (subtask, pair)
        return [run for run in self.runs if (run.result.subtask, run.result.pair) == wanted]

    def able(self, subtask: Subtask, pair: Pair) -> set[int]:
        """Seeds whose model learned the rule, under the encoding that it was trained with."""
        own = self.runs_of(subtask, Pair(pair.trained, pair.trained)) or self.runs_of(subtask, pair)
        return {run.result.seed for run in own if run.result.test.id_accuracy >= LEARNED}

    def learned_runs(self, subtask: Subtask, pair: Pair) -> list[PosGenRun]:
        """Those of `runs_of` whose model learned the rule."""
        able = self.able(subtask, pair)
        return [run for run in self.runs_of(subtask, pair) if run.result.seed in able]

    @property
    def places(self) -> dict[tuple[Subtask, Pair], Place]:
        """`(sub-task, pair)` -> means over the seeds, in the paper's order."""
        return {
            (subtask, pair): Place.of(runs, self.learned_runs(subtask, pair))
            for subtask in SUBTASKS
            for pair in self.pairs
            if (runs := self.runs_of(subtask, pair))
        }

    @property
    def learned(self) -> set[Subtask]:
        """Sub-tasks that at least one encoding learned."""
        return {subtask for (subtask, _), place in self.places.items() if place.learned}


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
    for name in ("data", "architecture"):
        if not isinstance(known.get(name, {}), Mapping):
            raise ResultsError(f"{settings}: {name}: {shown(known[name])}; allowed: an object")
    _data_of(known, "recursive", folder)
    runs = []
    for file in files:
        runs.append(PosGenRun(file.parent, _checked(file, folder, known)))
        for test in sorted(file.parent.glob("tested/*.json")):
            result = _checked(test, folder, known)
            # A test of weights that were trained anew since is not one of this model.
            if result.weights == runs[-1].result.files.get("model.safetensors", result.weights):
                runs.append(PosGenRun(file.parent, result))
    return Experiment(folder.name, known, tuple(runs))


def _data_of(settings: Mapping[str, Any], subtask: str, folder: Path) -> PosGenSettings:
    """The data set that `settings.json` describes.

    Raises:
        ResultsError: names the setting, its value and what is allowed.
    """
    written = settings.get("data", {})
    given = {name: written[name] for name in PosGenSettings.model_fields if name in written}
    where = f"{folder / 'settings.json'}: data"
    return read(PosGenSettings, {**given, "subtask": subtask}, where, ResultsError)


def _checked(file: Path, folder: Path, settings: Mapping[str, Any]) -> PosGenResult:
    """A result that belongs to its path, and whose accuracies are the means of those by position.

    A copy under another path would count as another seed.

    Raises:
        ResultsError: it is of another run or test, was edited, or cannot be read.
    """
    result = read_model(PosGenResult, file)
    run = f"{result.subtask}/{result.encoding}/seed-{result.seed}"
    places = [f"{run}/tested/{result.pair.tested}.json"]
    places += [f"{run}/result.json"] * (result.pair.trained == result.pair.tested)
    if file.relative_to(folder).as_posix() not in places:
        raise ResultsError(f"{file}: is the result of {places[-1]}; copied, or edited since")
    shares = result.test.by_position
    if not shares or not settings:
        return result
    data = _data_of(settings, result.subtask, folder)
    if len(shares) != data.length - data.seed_tokens:
        raise ResultsError(
            f"{file}: test.by_position: {len(shares)} numbers, and {data.length} less a seed of "
            f"{data.seed_tokens} in settings.json; edited since"
        )
    for name, (start, end) in position_ranges(data).items():
        stated = getattr(result.test, name, None)
        mean = statistics.fmean(shares[start - data.seed_tokens : end - data.seed_tokens])
        if stated is not None and not math.isclose(stated, mean, rel_tol=1e-6, abs_tol=1e-6):
            raise ResultsError(
                f"{file}: test.{name}: {stated / 100:.6g}, and {mean / 100:.6g} by position; "
                "edited since"
            )
    return result


Curve = dict[float, list[float]]
"""x -> one value a seed, x ascending."""


def loss_curve(runs: Sequence[PosGenRun]) -> Curve:
    """Epoch -> validation losses of the runs that have it, nats a token.

    Raises:
        ResultsError: a run's `metrics.csv` is missing, was altered, or a loss in it is no number.
    """
    losses: dict[float, list[float]] = defaultdict(list)
    for run in runs:
        file = run.folder / "metrics.csv"
        if altered(run.folder, {k: v for k, v in run.result.files.items() if k == file.name}):
            raise ResultsError(f"{file}: missing, or altered after the run (SHA-256 differs)")
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
