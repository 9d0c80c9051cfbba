"""Logged samples: the numbers of every question, and its text only when somebody looks.

A samples file repeats whole prompts, so it is read line by line and only numbers are kept.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from leval_border.errors import SettingError
from leval_border.json_texts import parse_json
from leval_leaderboard.results.fields import (
    LONGEST_METRIC,
    ResultsError,
    finite,
    open_regular,
    pair,
    short_name,
)
from leval_leaderboard.statistics.clustered import sums_by_cluster

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

DESCRIBING = {
    "doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics",
    "doc_hash", "prompt_hash", "target_hash",
}  # fmt: skip
"""What lm-eval logs of a sample beside its metrics."""

LONGEST_LINE = 64 * 2**20

_LOG_LIKELIHOODS = re.compile(r"perplexity|bits_per_|(^|_)ppl$")
"""Metrics of which lm-eval's own tasks log likelihoods, where ours log nats."""

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
            chosen = next((each for name, each in self.metrics if name == metric), "")
        column = self.metrics.get((metric, chosen), self.metrics.get((metric, UNNAMED)))
        if column is None:
            return None
        ratios = Ratios(self.questions, self.clusters, *column)
        known = ~np.isnan(ratios.numerator)
        return ratios if known.all() else ratios.take(known)

    def bounds(self, metric: str, chosen: str) -> tuple[float, float] | None:
        """Mean score if every answer whose thinking was cut were wrong, and if it were right.

        None where no answer was cut so, or the metric is no mean of scores from 0 to 1.
        """
        column = self.metrics.get((metric, chosen), self.metrics.get((metric, UNNAMED)))
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


def same_questions(one: Ratios, other: Ratios) -> bool:
    """Whether both are of the same questions, in whatever order."""
    return np.array_equal(np.sort(one.questions), np.sort(other.questions))


def in_common(one: Ratios, other: Ratios) -> tuple[Ratios, Ratios]:
    """Both on the questions that were asked in both, in one order."""
    if np.array_equal(one.questions, other.questions):
        return one, other
    _, left, right = np.intersect1d(one.questions, other.questions, return_indices=True)
    return one.take(left), other.take(right)


def parsed_lines(path: Path) -> Iterator[dict[str, Any] | None]:
    """The objects of a JSONL file, None for a line that is none; blank lines are passed over.

    Raises:
        ResultsError: the file cannot be read.
    """
    with open_regular(path) as lines:
        try:
            for line in _lines(lines, path):
                if line.strip():
                    yield _parsed(line)
        except OSError as error:
            raise ResultsError(f"{path}: not readable ({error})") from error


def _lines(handle: BinaryIO, path: Path) -> Iterator[bytes]:
    while line := handle.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise ResultsError(f"{path}: a line is longer than {LONGEST_LINE >> 20} MiB")
        yield line


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = parse_json(line, "a sample")
    except SettingError:
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
    if "cluster" not in doc or not isinstance(document, str | int) or isinstance(document, bool):
        name = row.get("doc_id")
        number = short_name(f"{row.get('doc_hash') if name is None else name}")
        return number, number, number
    question = doc.get("question_id")
    key = f"{document}" if question is None else f"{document}#{question}"
    return short_name(key), short_name(f"{document}"), short_name(f"{doc['cluster']}")


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


def question_hash(row: Mapping[str, Any]) -> str:
    """Hash of what was asked: lm-eval's own of prompt and target, else one of all that is logged.

    With prompt and target goes the question's name, where a sample has one, else the document.
    """
    asked, target = row.get("prompt_hash"), row.get("target_hash")
    if isinstance(asked, str) and isinstance(target, str):
        key, document, _ = question_key(row)
        own = key if document != f"{row.get('doc_id')}" else f"{row.get('doc_hash')}"
        return short_name(f"{own} {asked} {target}")
    parts = [row.get(name) for name in ("doc", "target", "arguments")]
    try:
        text = json.dumps(parts, sort_keys=True)
    except (RecursionError, ValueError):
        text = f"{row.get('doc_id')}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class _Columns:
    """The numbers of the questions of a samples file as they are read, row by row."""

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
        """All of them; what was asked several times gets a number for each time."""
        times: dict[str, int] = {}
        for at, asked in enumerate(self.asked):
            times[asked] = times.get(asked, 0) + 1
            if times[asked] > 1:
                self.asked[at] = f"{asked} #{times[asked]}"
        if self.mixed:
            self.metrics.clear()
        for column in self.metrics.values():
            column.extend([MISSING] * (len(self.asked) - len(column)))
        return Samples(
            path,
            _coded(self.asked, codes),
            _coded(self.clusters, codes),
            {key: np.array(column).reshape(-1, 2).T.copy() for key, column in self.metrics.items()},
            {name: sum(each.values()) / len(each) for name, each in self.flags.items()},
            np.array([self._is_open(at) for at in range(len(self.asked))], dtype=np.bool_),
            bad,
            frozenset(self.damaged),
        )

    def _is_open(self, at: int) -> bool:
        return self.flags.get("thinking_unfinished", {}).get(at, 0.0) > 0


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
    return np.array([codes.setdefault(name, len(codes)) for name in names], dtype=np.int32)


def logged_metrics(row: Mapping[str, Any]) -> list[str]:
    """Names of the metrics that a sample logs."""
    names = row.get("metrics", [name for name in row if name not in DESCRIBING])
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
