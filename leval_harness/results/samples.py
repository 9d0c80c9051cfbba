"""Logged samples: the numbers of every question; texts are read when somebody looks.

A samples file repeats whole prompts, so it is read line by line and only numbers are kept.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leval_harness.results.fields import (
    LONGEST_METRIC,
    ResultsError,
    finite,
    pair,
    short_name,
)
from leval_harness.results.sample_lines import (
    logged_metrics,
    parsed_lines,
    question_hash,
    question_key,
)
from leval_tasks.statistics.clustered import Floats, Ratios

Codes = npt.NDArray[np.int32]

FLAGS = (
    "unparsed", "truncated", "prompt_tokens", "kept_tokens", "document_tokens", "reached_limit",
    "thinking_unfinished",
)  # fmt: skip
LISTINGS = {"key_spans"}
"""What a task of ours lists of each text; its figure is how many there are."""

NOT_SCORES = {*FLAGS, "right", "wrong", "failed", *LISTINGS}
MISSING = (math.nan, math.nan)
UNNAMED = ""
"""Stands for the filter in samples of old versions, which do not name it."""

_LOG_LIKELIHOODS = re.compile(r"perplexity|bits_per_|(^|_)ppl$")
"""Metrics of which lm-eval's own tasks log likelihoods, where ours log nats."""


@dataclass(frozen=True, slots=True)
class Samples:
    """The numbers of one task of one run; arrays `[n]`, a place a question.

    `questions` are numbers for what was asked, by its hash, and `clusters` for documents, the same
    in all runs. `metrics` holds for each (metric, filter) numerators and denominators `[2, n]`, NaN
    where a question has none, `means` those of `FLAGS`. `unfinished` says of which the thinking was
    cut before its end. `bad` counts lines that are not JSON, `damaged` names metrics with values
    that are no numbers. `path` is the file with the texts.
    """

    path: Path
    questions: Codes
    clusters: Codes
    metrics: Mapping[tuple[str, str], Floats]
    means: Mapping[str, float]
    unfinished: npt.NDArray[np.bool_]
    bad: int
    damaged: frozenset[str]

    def ratios(self, metric: str, chosen: str | None = None) -> Ratios | None:
        """A metric of one filter, of the questions that have it; None if it was not logged.

        Without a filter, of the first that has it.
        """
        if chosen is None:
            chosen = next((each for name, each in self.metrics if name == metric), UNNAMED)
        column = self._column(metric, chosen)
        if column is None:
            return None
        ratios = Ratios(self.questions, self.clusters, *column)
        known = ~np.isnan(ratios.numerator)
        return ratios if known.all() else ratios.take(known)

    def _column(self, metric: str, chosen: str) -> Floats | None:
        """Numerators and denominators `[2, n]`, also where the samples do not name the filter."""
        return self.metrics.get((metric, chosen), self.metrics.get((metric, UNNAMED)))

    def bounds(self, metric: str, chosen: str) -> tuple[float, float] | None:
        """Mean score if every answer whose thinking was cut were wrong, and if it were right.

        None where no answer was cut so, or the metric is no mean of scores from 0 to 1.
        """
        column = self._column(metric, chosen)
        if column is None or not self.unfinished.any():
            return None
        known = ~np.isnan(column[0])
        scores, open_ended = column[0][known], self.unfinished[known]
        if not scores.size or (column[1][known] != 1).any() or (scores < 0).any():
            return None
        if (scores > 1).any() or not open_ended.any():
            return None
        wrong, right = (np.where(open_ended, worth, scores).mean() for worth in (0.0, 1.0))
        return float(wrong), float(right)


class _Columns:
    """The numbers of the questions of a samples file as they are read, row by row.

    A question's place is the same in every list, and in the columns of `metrics`, which may be
    shorter than the others: what is missing at their ends are questions without the metric.
    """

    def __init__(self) -> None:
        self.place: dict[str, int] = {}
        self.asked: list[str] = []
        self.clusters: list[str] = []
        self.metrics: dict[tuple[str, str], list[tuple[float, float]]] = {}
        self.flags: dict[str, dict[int, float]] = {}
        self.damaged: set[str] = set()
        self.unnamed: set[int] = set()
        self.mixed = False

    def add(self, row: Mapping[str, Any], path: Path) -> None:
        """A line: one question under one filter."""
        question, _, cluster = question_key(row)
        at = self.place.setdefault(question, len(self.place))
        if at == len(self.asked):
            self.asked.append(question_hash(row))
            self.clusters.append(cluster)
        chosen = short_name(str(row.get("filter", UNNAMED)), LONGEST_METRIC)
        if chosen == UNNAMED and at in self.unnamed:
            self.mixed = True  # another filter's, of a version that does not say which
            return
        self.unnamed |= {at} if chosen == UNNAMED else set()
        for name in logged_metrics(row):
            if name in NOT_SCORES or name.endswith("_stderr"):
                continue
            column = self.metrics.setdefault((short_name(name, LONGEST_METRIC), chosen), [])
            if len(column) > at:
                raise ResultsError(f"{path}: the same question occurs twice")
            column.extend([MISSING] * (at - len(column)))
            column.append(self._measured(name, row.get(name)))
        for name in FLAGS:
            if (number := finite(row.get(name))) is not None:
                self.flags.setdefault(name, {})[at] = number

    def _measured(self, name: str, value: object) -> tuple[float, float]:
        """A logged value as numerator and denominator; NaN where it says nothing."""
        number = finite(value)
        both = pair(value) if number is None else (number, 1.0)
        if both is None:
            if value is not None and not _is_empty(value):  # null: not of this question
                self.damaged.add(name)
            return MISSING
        if name.isdecimal() and both[0] < 0:  # RULER's sign of a length that was not asked
            return MISSING
        if both[0] < 0 and _LOG_LIKELIHOODS.search(name):
            return -both[0], both[1]
        return both

    def samples(self, path: Path, codes: dict[str, int], bad: int) -> Samples:
        """All of them, once every line was added."""
        n = len(self.asked)
        if self.mixed:
            self.metrics.clear()
        for column in self.metrics.values():
            column.extend([MISSING] * (n - len(column)))
        unfinished = self.flags.get("thinking_unfinished", {})
        return Samples(
            path=path,
            questions=_coded(_each_time(self.asked), codes),
            clusters=_coded(self.clusters, codes),
            metrics={
                key: np.array(column).reshape(-1, 2).T.copy()
                for key, column in self.metrics.items()
            },
            means={name: sum(each.values()) / len(each) for name, each in self.flags.items()},
            unfinished=np.array([unfinished.get(at, 0.0) > 0 for at in range(n)], dtype=np.bool_),
            bad=bad,
            damaged=frozenset(self.damaged),
        )


def _each_time(asked: Iterable[str]) -> list[str]:
    """Names of which one that occurs again is told apart by how often it has."""
    times: Counter[str] = Counter()
    names = []
    for name in asked:
        times[name] += 1
        names.append(name if times[name] == 1 else f"{name} #{times[name]}")
    return names


def _is_empty(value: object) -> bool:
    """Whether it is a ratio of which nothing was counted."""
    return isinstance(value, list) and len(value) == 2 and value[1] == 0


def read_samples(path: Path, codes: dict[str, int]) -> Samples:
    """Read the numbers of a samples file, of every filter.

    `codes` numbers questions and documents; new ones are added to it.

    Raises:
        ResultsError: the file cannot be read, or a question occurs twice.
    """
    columns, bad = _Columns(), 0
    for row in parsed_lines(path):
        if row is None:
            bad += 1
        else:
            columns.add(row, path)
    return columns.samples(path, codes, bad)


def _coded(names: list[str], codes: dict[str, int]) -> Codes:
    """The numbers that stand for names in all runs; new ones are added to `codes`."""
    return np.array([codes.setdefault(name, len(codes)) for name in names], dtype=np.int32)
