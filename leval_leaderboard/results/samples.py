"""Logged samples: the numbers of every question, and its text only when somebody looks.

A samples file repeats whole prompts, so it is read line by line and only numbers are kept.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from leval_leaderboard.results.fields import ResultsError, finite, pair
from leval_leaderboard.statistics.clustered import sums_by_cluster

FLAGS = ("unparsed", "truncated", "prompt_tokens", "kept_tokens", "document_tokens")
NOT_SCORES = {*FLAGS, "right", "wrong"}
MISSING = (math.nan, math.nan)

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int32]


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

    def by_cluster(self) -> tuple[npt.NDArray[Any], ...]:
        """Clusters ascending, and the sums of each: `[G]` three times."""
        return sums_by_cluster(self.clusters, self.numerator, self.denominator)


@dataclass(frozen=True, slots=True)
class Samples:
    """The numbers of one task of one run; arrays `[n]`, a place a question.

    `questions` and `clusters` are numbers for names, the same in all runs. `metrics` holds
    numerators and denominators `[2, n]`, NaN where a question has none, `means` those of `FLAGS`.
    `bad` counts lines that are not JSON. `path` is the file with the texts.
    """

    path: Path
    questions: Codes
    clusters: Codes
    metrics: Mapping[str, Floats]
    means: Mapping[str, float]
    bad: int

    def ratios(self, metric: str) -> Ratios | None:
        """A metric of the questions that have it; None if it was not logged."""
        if metric not in self.metrics:
            return None
        ratios = Ratios(self.questions, self.clusters, *self.metrics[metric])
        known = ~np.isnan(ratios.numerator)
        return ratios if known.all() else ratios.take(known)


def parsed_lines(path: Path) -> Iterator[dict[str, Any] | None]:
    """The objects of a JSONL file, None for a line that is none; blank lines are passed over.

    Raises:
        ResultsError: the file cannot be read.
    """
    try:
        with path.open("rb") as lines:
            for line in lines:
                if line.strip():
                    yield _parsed(line)
    except OSError as error:
        raise ResultsError(f"{path}: not readable ({error})") from error


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def rows_of_first_filter(lines: Iterable[dict[str, Any] | None]) -> Iterator[dict[str, Any]]:
    """The objects among parsed lines; where several filters were logged, the first one's."""
    chosen: object = None
    for row in lines:
        if row:
            chosen = row.get("filter") if chosen is None else chosen
            if row.get("filter") == chosen:
                yield row


def document_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a sample says of its document and question."""
    doc = row.get("doc")
    return doc if isinstance(doc, dict) else {}


def question_key(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """`(question, document, cluster)` of a sample; a plain lm-eval sample is its own document."""
    doc = document_of(row)
    document = doc.get("document_id")
    if not isinstance(document, str | int) or isinstance(document, bool):
        number = f"{row.get('doc_id')}"[:300]
        return number, number, number
    question = doc.get("question_id")
    key = f"{document}" if question is None else f"{document}#{question}"
    return key[:300], f"{document}"[:300], f"{doc.get('cluster', document)}"[:300]


def gold_of(row: Mapping[str, Any]) -> str | None:
    """The gold answer of a sample of ours."""
    gold = document_of(row).get("gold")
    return gold if isinstance(gold, str) else None


def responses_of(row: Mapping[str, Any]) -> list[str]:
    """The model's own texts, one a request: `resps` is a list (a request) of lists (repeats)."""
    texts = []
    requests = row.get("resps")
    for repeats in requests if isinstance(requests, list) else ():
        first = repeats[0] if isinstance(repeats, list) and repeats else repeats
        if isinstance(first, list) and first:  # a likelihood with its greedy flag
            first = first[0]
        if not isinstance(first, str):
            return []
        texts.append(first)
    return texts


def read_samples(path: Path, codes: dict[str, int]) -> Samples:
    """Read the numbers of a samples file; of several filters, the first one's.

    `codes` numbers the names of questions and documents; new names are added to it.

    Raises:
        ResultsError: the file cannot be read, or a question occurs twice.
    """
    questions: list[str] = []
    clusters: list[str] = []
    metrics: dict[str, list[tuple[float, float]]] = {}
    flags: dict[str, list[float]] = {}
    bad = 0

    def lines() -> Iterator[dict[str, Any] | None]:
        nonlocal bad
        for row in parsed_lines(path):
            bad += row is None
            yield row

    for seen, row in enumerate(rows_of_first_filter(lines())):
        question, _, cluster = question_key(row)
        questions.append(question)
        clusters.append(cluster)
        for name in logged_metrics(row):
            if name not in NOT_SCORES and not name.endswith("_stderr"):
                column = metrics.setdefault(name[:100], [MISSING] * seen)
                if len(column) == seen:
                    column.append(_measured(row.get(name)))
        for column in metrics.values():
            if len(column) == seen:
                column.append(MISSING)
        for name in FLAGS:
            if (number := finite(row.get(name))) is not None:
                flags.setdefault(name, []).append(number)
    if len(set(questions)) != len(questions):
        raise ResultsError(f"{path}: the same question occurs twice")
    return Samples(
        path,
        _coded(questions, codes),
        _coded(clusters, codes),
        {metric: np.array(column).reshape(-1, 2).T.copy() for metric, column in metrics.items()},
        {name: sum(numbers) / len(numbers) for name, numbers in flags.items()},
        bad,
    )


def _coded(names: list[str], codes: dict[str, int]) -> Codes:
    return np.array([codes.setdefault(name, len(codes)) for name in names], dtype=np.int32)


def logged_metrics(row: Mapping[str, Any]) -> list[str]:
    """Names of the metrics that a sample logs."""
    names = row.get("metrics")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _measured(value: object) -> tuple[float, float]:
    number = finite(value)
    return (pair(value) or MISSING) if number is None else (number, 1.0)
