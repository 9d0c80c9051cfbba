"""Scores with intervals, ranks and paired comparisons: what every table, figure and page shows."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from leval_harness.analysis.labels import block_titles, method_labels, method_titles
from leval_harness.old_results import Results, Run, Score
from leval_harness.old_results.scores import frame_of
from leval_tasks.metrics import FAMILY_OF
from leval_tasks.statistics.clustered import (
    Estimate,
    Ratios,
    clopper_pearson,
    estimate_mean,
    estimate_ratio,
    shows_no_spread,
)
from leval_tasks.statistics.paired import Difference, compare_family, same_questions
from resonance_vllm.errors import one_of

FAMILY = "effective_context"
"""Of the tasks whose losses tell how far a model reads; their metrics stand on no board."""

LEVEL = 0.05

TOKEN_PERPLEXITIES = ("token_perplexity", "paper_perplexity")
"""Families of losses that have columns and figures of their own; the others repeat them."""

TWINS = ("paper_perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte")
"""Families that repeat the token perplexity of the same run and task."""

UNKNOWN_DIRECTION = "it is unknown whether higher is better"
OTHER_QUESTIONS = "the runs do not have the same questions"
OTHER_SCALE = "values up to 1 stand beside larger ones, so shares may be mixed with percentages"
"""Reasons why numbers of one task and metric are not ranked."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Entry:
    """One analysed score.

    Attributes:
        score: with the standard error and the number of clusters computed from the samples.
        run: its run.
        block: title of the rows that it may be ranked against.
        label: the method's name, with the run's number where two runs share a place.
        low, high: ends of the 95% interval.
        interval: how it was computed: `clustered`, `exact`, `reported` (lm-eval's own standard
            error, no ends) or `none`.
        rank: 1 is best; None where all are equal.
        unranked: why it is not ranked against its rivals; empty where it is.
        difference: to the block's baseline; None for the baseline itself and without common
            questions.
        other_questions: whether the baseline was asked other questions, in part or altogether.
    """

    score: Score
    run: Run
    block: str
    label: str
    low: float | None = None
    high: float | None = None
    interval: str = "none"
    rank: int | None = None
    unranked: str = ""
    difference: Difference | None = None
    other_questions: bool = False

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.score.task

    @property
    def length(self) -> int | None:
        """Context length of the number: the one in its metric's name, else the run's."""
        return self.score.context_length if self.score.at is None else self.score.at

    @property
    def mark(self) -> str:
        """The mark of its difference."""
        return self.difference.mark if self.difference else ""

    @property
    def family(self) -> str | None:
        """The folder below `leval_tasks` if the task is one of ours: `closed`, `perplexity`, …."""
        return FAMILY_OF.get(self.task)

    def record(self) -> dict[str, Any]:
        """Everything known about it, flat; `diff_low` and `diff_high` end the difference."""
        of_entry = ("block", "label", "low", "high", "interval", "rank")
        compared = asdict(self.difference) if self.difference else {}
        names = {"low": "diff_low", "high": "diff_high"}
        return {
            **self.score.record(self.run),
            **{name: getattr(self, name) for name in of_entry},
            **{names.get(f.name, f.name): compared.get(f.name) for f in fields(Difference)},
            "mark": self.mark,
        }


@dataclass(frozen=True, eq=False)  # one object for each analysis: what follows is computed once
class Analysis:
    """Every score, analysed.

    Attributes:
        entries: in the order of `Results.scores`.
        baselines: `block -> label` of the method that the others are compared with; empty if none.
        titles: label of each method -> its name for readers.
        results: what was read.
        margin: of the effective context length, nats a token; None for what the runs name.
    """

    entries: list[Entry]
    baselines: Mapping[str, str]
    titles: Mapping[str, str]
    results: Results
    margin: float | None = None

    @property
    def board(self) -> list[Entry]:
        """Primary scores and perplexities, without the `TWINS` of a token perplexity."""
        shown = [entry for entry in self.entries if entry.score.primary and entry.family != FAMILY]
        token = {(e.score.run, e.task) for e in shown if e.score.family == "token_perplexity"}
        return [
            entry
            for entry in shown
            if entry.score.family not in TWINS or (entry.score.run, entry.task) not in token
        ]

    def against(self, baseline: str | None) -> "Analysis":
        """The same with another baseline in every block that has this method.

        Differences are paired, and corrected within task, metric and context length.

        Raises:
            SettingError: no run has that method.
        """
        if baseline is not None:
            one_of("baseline", baseline, sorted({entry.label for entry in self.entries}))
        baselines = {
            block: _baseline(part, baseline)
            for block, part in grouped(self.entries, lambda entry: entry.block).items()
        }
        entries = [
            dataclasses.replace(entry, difference=None, other_questions=False)
            for entry in self.entries
        ]
        finished = [entry for entry in entries if entry.score.finished]
        compared: dict[int, Entry] = {}
        for rivals in grouped(finished, comparable).values():
            base = [entry for entry in rivals if entry.label == baselines[entry.block]]
            if len(base) == 1 and len(rivals) > 1:
                compared |= _with_differences(rivals, base[0], self.results)
        shown = [compared.get(id(each), each) for each in entries]
        return dataclasses.replace(self, entries=shown, baselines=baselines)

    def differences_to(self, baseline: str) -> dict[int, Difference]:
        """Place of each entry -> its difference to a method, in the blocks that have it."""
        other = self.against(baseline)
        return {
            at: entry.difference
            for at, entry in enumerate(other.entries)
            if entry.difference and other.baselines[entry.block] == baseline
        }

    def frame(self) -> Any:
        """The entries as a pandas frame, one row each: the columns of `Results.frame` and more."""
        return frame_of(entry.record() for entry in self.entries)


def analyse(results: Results, baseline: str | None = None, margin: float | None = None) -> Analysis:
    """Estimate, rank and compare.

    Args:
        results: what was read.
        baseline: method to compare with in every block; else the one that the runs name, else
            `none` (plain RoPE) or `default`; without any of these there is no comparison.
        margin: of the effective context length, nats a token: a smaller loss is no degradation, a
            smaller gain no benefit. None for what the runs name, else 0.01.

    Raises:
        SettingError: `baseline` is given and no run has that method.
    """
    found = [
        _estimated(Entry(score, results.runs[score.run], "", ""), results.ratios(score))
        for score in results.scores
    ]
    blocks = block_titles(results.scores, results.runs)
    labels = method_labels(results.scores, results.runs, blocks)
    entries = [
        dataclasses.replace(entry, block=block, label=label)
        for entry, block, label in zip(found, blocks, labels, strict=True)
    ]
    titles = method_titles(results.scores, labels)
    return Analysis(_ranked(entries, results), {}, titles, results, margin).against(baseline)


def grouped(items: Iterable[Item], key: Callable[[Item], Hashable]) -> dict[Any, list[Item]]:
    """Items by a key; keys and items stay in order."""
    groups: dict[Any, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)


def comparable(entry: Entry) -> tuple[str, ...]:
    """What must agree before two numbers are ranked or compared."""
    score = entry.score
    return entry.block, entry.task, score.metric, score.chosen, f"{score.context_length}"


def _estimated(entry: Entry, ratios: Ratios | None) -> Entry:
    """With the standard error and interval computed from the samples.

    Without samples lm-eval's own standard error stays, unless it claims certainty: then all answers
    are alike, and where all are right or all wrong there is an exact interval.
    """
    score = entry.score
    if score.value is None or not score.finished:
        return entry
    if ratios is not None and (found := _estimate(score, ratios)) is not None:
        return dataclasses.replace(
            entry,
            score=dataclasses.replace(score, stderr=found.stderr, clusters=found.clusters),
            low=found.low,
            high=found.high,
            interval=found.method,
        )
    if score.stderr is not None and not shows_no_spread(score.stderr, score.value):
        return dataclasses.replace(entry, interval="reported")
    entry = dataclasses.replace(entry, score=dataclasses.replace(score, stderr=None))
    if score.percent == 100 and score.value in (0.0, 1.0) and score.n:
        low, high = clopper_pearson(round(score.value * score.n), score.n)
        return dataclasses.replace(entry, low=low, high=high, interval="exact")
    return entry


def _estimate(score: Score, ratios: Ratios) -> Estimate | None:
    """The value with its uncertainty; None where the metric is no mean and no ratio of sums."""
    if not ratios.questions.size:
        return None
    if score.meaning.kind != "loss":
        return estimate_mean(ratios.numerator, ratios.clusters) if ratios.are_scores else None
    _, tops, bottoms = ratios.by_cluster()
    how = score.meaning.aggregation
    tops = tops / math.log(2) if how == "bits" else tops
    try:
        return estimate_ratio(tops, bottoms, exponential=how == "perplexity")
    except ValueError:
        return None


def _ranked(entries: Sequence[Entry], results: Results) -> list[Entry]:
    """Dense rank among comparable entries, 1 is best, or why there is none."""
    ranks: dict[int, int] = {}
    reasons: dict[int, str] = {}
    finished = [entry for entry in entries if entry.score.finished]
    for rivals in grouped(finished, comparable).values():
        if reason := _not_rankable([entry.score for entry in rivals], results):
            reasons |= {id(entry): reason for entry in rivals}
            continue
        values = [round(entry.score.value or 0.0, 12) for entry in rivals]
        order = sorted(set(values), reverse=rivals[0].score.higher)
        if len(order) > 1:
            ranks |= {id(e): order.index(v) + 1 for e, v in zip(rivals, values, strict=True)}
    return [
        dataclasses.replace(each, rank=ranks.get(id(each)), unranked=reasons.get(id(each), ""))
        for each in entries
    ]


def _not_rankable(scores: Sequence[Score], results: Results) -> str:
    """Why the numbers of some methods cannot be ranked; empty where they can."""
    directions = {score.higher_is_better for score in scores}
    if None in directions or len(directions) > 1:
        return UNKNOWN_DIRECTION
    if len(scores) == 1:
        return ""
    logged = [ratios for score in scores if (ratios := results.ratios(score)) is not None]
    counts = {score.n for score in scores} - {None}
    if len(counts) > 1 or not all(same_questions(logged[0], each) for each in logged[1:]):
        return OTHER_QUESTIONS
    values = [score.value or 0.0 for score in scores]
    if not scores[0].meaning.unit and min(values) <= 1 < max(values):
        return OTHER_SCALE
    return ""


def _baseline(entries: Sequence[Entry], wanted: str | None) -> str:
    methods = {entry.label for entry in entries}
    named = [entry.run.baseline for entry in entries if entry.run.baseline]
    candidates = (wanted, *named[:1], "none", "default")
    return next((name for name in candidates if name and name in methods), "")


def _with_differences(entries: list[Entry], base: Entry, results: Results) -> dict[int, Entry]:
    """`id(entry) -> entry compared with the baseline`, of every rival whose samples were logged."""
    baseline = results.ratios(base.score)
    if baseline is None:
        return {}
    rivals = [
        (entry, ratios)
        for entry in entries
        if entry is not base and (ratios := results.ratios(entry.score)) is not None
    ]
    found = compare_family(
        [ratios for _, ratios in rivals],
        baseline,
        LEVEL,
        are_losses=base.score.meaning.kind == "loss",
        higher_is_better=base.score.higher,
    )
    is_directed = base.score.higher_is_better is not None
    return {
        id(entry): dataclasses.replace(
            entry,
            difference=difference if is_directed else None,
            other_questions=not same_questions(ratios, baseline),
        )
        for (entry, ratios), difference in zip(rivals, found, strict=True)
    }
