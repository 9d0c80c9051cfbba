"""Logged samples as arrays: the numbers of each question. Texts stay in the file.

A samples file repeats whole prompts, so it is read line by line and only numbers are kept.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from leval_harness.old_results.fields import ResultsError
from leval_harness.old_results.sample_lines import NOTES, Sample, parsed_lines
from leval_tasks.metrics import LM_EVAL, length_of
from leval_tasks.statistics.clustered import Floats, Ratios

Codes = npt.NDArray[np.int32]

LOG_LIKELIHOODS = {
    name for name, metric in LM_EVAL.items() if metric.unit in ("perplexity", "bits")
}
"""Metrics whose samples hold log-likelihoods in lm-eval's tasks, and nats in ours."""

MISSING = (math.nan, math.nan)
NO_FILTER = ""
"""Stands for the filter in samples of lm-eval before 0.4.5, which do not name it."""


@dataclass(frozen=True, slots=True)
class Samples:
    """The numbers of one task of one run; arrays `[n]`, a place for each question.

    Attributes:
        path: the file with the texts.
        questions, clusters: numbers for questions, by the hash of what was asked, and for
            documents; the same in all runs.
        metrics: (metric, filter) -> numerators and denominators `[2, n]`, NaN where a question has
            none.
        notes: name of `NOTES` -> a value for each question, NaN where it has none.
        bad: lines that are not JSON.
        damaged: metrics with values that are no numbers.
    """

    path: Path
    questions: Codes
    clusters: Codes
    metrics: Mapping[tuple[str, str], Floats]
    notes: Mapping[str, Floats]
    bad: int
    damaged: frozenset[str]

    def ratios(self, metric: str, chosen: str | None = None) -> Ratios | None:
        """A metric of one filter, of the questions that have it; None if it was not logged.

        Without a filter, of the first that has it.
        """
        if chosen is None:
            chosen = next((each for name, each in self.metrics if name == metric), NO_FILTER)
        column = self._column(metric, chosen)
        if column is None:
            return None
        ratios = Ratios(self.questions, self.clusters, *column)
        known = ~np.isnan(ratios.numerator)
        return ratios if known.all() else ratios.take(known)

    def _column(self, metric: str, chosen: str) -> Floats | None:
        """Numerators and denominators `[2, n]`, also where the samples do not name the filter."""
        return self.metrics.get((metric, chosen), self.metrics.get((metric, NO_FILTER)))

    def has(self, metric: str, chosen: str) -> npt.NDArray[np.bool_]:
        """Which questions have a metric `[n]`."""
        column = self._column(metric, chosen)
        return np.zeros(self.questions.size, bool) if column is None else ~np.isnan(column[0])

    def mean_of(self, note: str) -> float | None:
        """Mean of a note over the questions that have it; None where none has."""
        values = self.notes.get(note)
        return None if values is None else float(np.nanmean(values))

    def bounds(self, metric: str, chosen: str) -> tuple[float, float] | None:
        """Mean score if every answer whose thinking was cut were wrong, and if it were right.

        None where no answer was cut in this way, or the metric is no mean of scores from 0 to 1.
        """
        column, cut = self._column(metric, chosen), self.notes.get("thinking_unfinished")
        if column is None or cut is None or not (cut > 0).any():
            return None
        known = ~np.isnan(column[0])
        scores, cut = column[0][known], cut[known] > 0
        if not cut.any() or (column[1][known] != 1).any() or ((scores < 0) | (scores > 1)).any():
            return None
        wrong, right = (np.where(cut, worth, scores).mean() for worth in (0.0, 1.0))
        return float(wrong), float(right)


class _Columns:
    """The numbers of a samples file while it is read, row by row.

    A question has the same place in every list. The columns of `metrics` may be shorter: questions
    that are missing at their ends do not have the metric.
    """

    def __init__(self) -> None:
        self.place: dict[str, int] = {}
        self.hashes: list[str] = []
        self.clusters: list[str] = []
        self.metrics: dict[tuple[str, str], list[tuple[float, float]]] = {}
        self.notes: dict[str, dict[int, float]] = {}
        self.damaged: set[str] = set()
        self.without_filter: set[int] = set()
        self.mixed = False

    def add(self, sample: Sample, path: Path) -> None:
        """A line: one question under one filter; without metrics it was not evaluated."""
        row, names = sample.row, sample.metrics
        if not names:
            return
        question, _, cluster = sample.key
        at = self.place.setdefault(question, len(self.place))
        if at == len(self.hashes):
            self.hashes.append(sample.hash)
            self.clusters.append(cluster)
        chosen = str(row.get("filter", NO_FILTER))
        if chosen == NO_FILTER and at in self.without_filter:
            self.mixed = True  # another filter, which the row does not name
            return
        self.without_filter |= {at} if chosen == NO_FILTER else set()
        for name in names:
            if name in NOTES or name.endswith("_stderr"):
                continue
            column = self.metrics.setdefault((name, chosen), [])
            if len(column) > at:
                raise ResultsError(f"{path}: the same question occurs twice")
            column.extend([MISSING] * (at - len(column)))
            column.append(self._measured(name, sample))
        for name, number in sample.notes.items():
            self.notes.setdefault(name, {})[at] = number

    def _measured(self, name: str, sample: Sample) -> tuple[float, float]:
        """A logged value as numerator and denominator; NaN where there is none."""
        both, value = sample.ratio(name), sample.row.get(name)
        if both is None:
            counts_nothing = isinstance(value, list) and len(value) == 2 and value[1] == 0
            if value is not None and not counts_nothing:
                self.damaged.add(name)
            return MISSING
        if both[0] < 0 and length_of(name) is not None:  # RULER's sign of another length
            return MISSING
        if both[0] < 0 and name in LOG_LIKELIHOODS:
            return -both[0], both[1]
        return both

    def samples(self, path: Path, codes: dict[str, int], bad: int) -> Samples:
        """All of them, once every line was added."""
        n, times, questions = len(self.hashes), Counter[str](), []
        for name in self.hashes:  # one that occurs again gets a number
            times[name] += 1
            questions.append(name if times[name] == 1 else f"{name} #{times[name]}")
        if self.mixed:
            self.metrics.clear()
        for column in self.metrics.values():
            column.extend([MISSING] * (n - len(column)))
        return Samples(
            path=path,
            questions=np.array([codes.setdefault(q, len(codes)) for q in questions], np.int32),
            clusters=np.array([codes.setdefault(c, len(codes)) for c in self.clusters], np.int32),
            metrics={
                key: np.array(column).reshape(-1, 2).T.copy()
                for key, column in self.metrics.items()
            },
            notes={
                name: np.array([values.get(at, math.nan) for at in range(n)])
                for name, values in self.notes.items()
            },
            bad=bad,
            damaged=frozenset(self.damaged),
        )


def read_samples(path: Path, codes: dict[str, int]) -> Samples:
    """The numbers of a samples file, under every filter.

    `codes` numbers questions and documents; new ones are added to it.

    Raises:
        ResultsError: the file cannot be read, or a question occurs twice.
    """
    columns, bad = _Columns(), 0
    for sample in parsed_lines(path):
        if sample is None:
            bad += 1
        else:
            columns.add(sample, path)
    return columns.samples(path, codes, bad)
