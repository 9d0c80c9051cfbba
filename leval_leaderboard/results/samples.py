"""Logged samples: the numbers of every question, and its text only when somebody looks.

A samples file repeats whole prompts, so it is read line by line and only numbers are kept.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leval_leaderboard.results.fields import ResultsError, finite, pair

FLAGS = ("unparsed", "truncated", "prompt_tokens", "kept_tokens", "document_tokens")
NOT_SCORES = {*FLAGS, "right", "wrong"}


Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int32]


class Names:
    """Names of questions and documents as numbers, so that millions of samples stay small."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def codes(self, names: Iterable[str]) -> Codes:
        """A number for each name, the same one in every call, from 0 in the order they come."""
        known = self._codes
        return np.array([known.setdefault(name, len(known)) for name in names], dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Ratios:
    """A metric of some questions: `numerator / denominator`, the latter 1 for scores; all `[n]`."""

    questions: Codes
    clusters: Codes
    numerator: Floats
    denominator: Floats

    @property
    def are_scores(self) -> bool:
        """Whether each is a number of its own, and no ratio."""
        return bool((self.denominator == 1).all())

    def take(self, places: npt.NDArray[Any]) -> "Ratios":
        """Those at some places, or where a mask holds."""
        parts = (self.questions, self.clusters, self.numerator, self.denominator)
        return Ratios(*(part[places] for part in parts))

    def by_cluster(self) -> tuple[Codes, Floats, Floats]:
        """Clusters ascending, and the sums of each: `[G]` three times."""
        names, index = np.unique(self.clusters, return_inverse=True)
        parts = (self.numerator, self.denominator)
        top, bottom = (np.bincount(index, weights=part).astype(np.float64) for part in parts)
        return names, top, bottom


@dataclass(frozen=True, slots=True)
class Samples:
    """The numbers of one task of one run; arrays `[n]`, a place a question.

    `questions` and `clusters` are numbers for names, the same in all runs. `metrics` holds
    numerators and denominators, NaN where a question has none. `path` is the file with the texts.
    """

    path: Path
    questions: Codes
    clusters: Codes
    metrics: Mapping[str, tuple[Floats, Floats]]

    def ratios(self, metric: str) -> Ratios | None:
        """A metric of the questions that have it; None if it was not logged."""
        if metric not in self.metrics:
            return None
        ratios = Ratios(self.questions, self.clusters, *self.metrics[metric])
        known = ~np.isnan(ratios.numerator)
        return ratios if known.all() else ratios.take(known)


@dataclass
class LoggedSamples:
    """A samples file while it is read and checked, a position a question.

    `metrics[name]` has `(numerator, denominator)` a question; a score's denominator is 1. A
    question without a usable number for a metric has None there.
    """

    questions: list[str] = field(default_factory=list)
    clusters: list[str] = field(default_factory=list)
    golds: list[str] = field(default_factory=list)
    metrics: dict[str, list[tuple[float, float] | None]] = field(default_factory=dict)
    flags: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in FLAGS})
    bad: int = 0
    sha256: str = ""

    def compact(self, path: Path, names: Names) -> Samples:
        """What is kept of the file."""
        pairs = {
            metric: np.array([pair or (np.nan, np.nan) for pair in column]).reshape(-1, 2)
            for metric, column in self.metrics.items()
        }
        return Samples(
            path,
            names.codes(self.questions),
            names.codes(self.clusters),
            {metric: (both[:, 0].copy(), both[:, 1].copy()) for metric, both in pairs.items()},
        )


def parsed_lines(path: Path) -> Iterator[dict[str, Any] | None]:
    """The objects of a JSONL file, None for a line that is none.

    Raises:
        ResultsError: the file cannot be read.
    """
    try:
        with path.open("rb") as lines:
            for line in lines:
                yield parse_line(line)
    except OSError as error:
        raise ResultsError(f"{path}: not readable ({error})") from error


def rows_of_first_filter(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a samples file; where several filters were logged, the first one's.

    Raises:
        ResultsError: the file cannot be read.
    """
    chosen: object = None
    for row in parsed_lines(path):
        if row is not None:
            chosen = row.get("filter") if chosen is None else chosen
            if row.get("filter") == chosen:
                yield row


def parse_line(line: bytes) -> dict[str, Any] | None:
    """One JSONL line as an object, or None."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def question_key(row: dict[str, Any]) -> tuple[str, str, str]:
    """`(question, document, cluster)` of a sample; a plain lm-eval sample is its own document."""
    doc = row.get("doc")
    doc = doc if isinstance(doc, dict) else {}
    number = f"{row.get('doc_id')}"[:300]
    document = doc.get("document_id")
    if not isinstance(document, str | int) or isinstance(document, bool):
        return number, number, number
    cluster = doc.get("cluster", document)
    question = doc.get("question_id")
    key = f"{document}" if question is None else f"{document}#{question}"
    return key[:300], f"{document}"[:300], f"{cluster}"[:300]


def _measured(value: object) -> tuple[float, float] | None:
    number = finite(value)
    return pair(value) if number is None else (number, 1.0)


def read_samples(path: Path) -> LoggedSamples:
    """Read the numbers of a samples file.

    Where several filters were logged, the first one's rows count.

    Raises:
        ResultsError: the file cannot be read, or a question occurs twice.
    """
    samples = LoggedSamples()
    digest = hashlib.sha256()
    chosen: object = None
    try:
        with path.open("rb") as lines:
            for line in lines:
                digest.update(line)
                row = parse_line(line) if line.strip() else {}
                if row is None:
                    samples.bad += 1
                    continue
                if not row:
                    continue
                chosen = row.get("filter") if chosen is None else chosen
                if row.get("filter") == chosen:
                    _append(samples, row)
    except OSError as error:
        raise ResultsError(f"{path}: not readable ({error})") from error
    if len(set(samples.questions)) != len(samples.questions):
        raise ResultsError(f"{path}: the same question occurs twice")
    samples.sha256 = digest.hexdigest()
    return samples


def _append(samples: LoggedSamples, row: dict[str, Any]) -> None:
    """Add one sample's numbers."""
    question, _, cluster = question_key(row)
    seen = len(samples.questions)
    samples.questions.append(question)
    samples.clusters.append(cluster)
    doc = row.get("doc")
    gold = doc.get("gold") if isinstance(doc, dict) else None
    samples.golds.append(gold[:300] if isinstance(gold, str) else "")
    named = row.get("metrics")
    names = named if isinstance(named, list) else []
    for name in names:
        if not isinstance(name, str) or name in NOT_SCORES or name.endswith("_stderr"):
            continue
        column = samples.metrics.setdefault(name[:100], [None] * seen)
        if len(column) == seen:
            column.append(_measured(row.get(name)))
    for column in samples.metrics.values():
        if len(column) == seen:
            column.append(None)
    for name in FLAGS:
        number = finite(row.get(name))
        samples.flags[name].append(float("nan") if number is None else number)
