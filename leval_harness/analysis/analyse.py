"""Scores with intervals, ranks and paired comparisons: what every table, figure and page shows."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from leval_border.errors import one_of
from leval_harness.analysis.blocks import block_titles, method_labels
from leval_harness.analysis.entries import CANNOT_TELL, SIGNIFICANT, Entry
from leval_harness.results import Results
from leval_harness.results.metrics import is_of_nats
from leval_harness.results.ratios import Ratios, in_common
from leval_harness.results.scores import Score, frame_of
from leval_tasks.metric_names import SIGN
from leval_tasks.statistics.clustered import (
    Estimate,
    clopper_pearson,
    estimate_mean,
    estimate_ratio,
    shows_no_spread,
)
from leval_tasks.statistics.paired import (
    Difference,
    compare_perplexities,
    compare_scores,
    holm,
)

LEVEL = 0.05

Item = TypeVar("Item")


@dataclass(frozen=True)
class Analysis:
    """Every score, analysed.

    entries: in the order of `Results.scores`.
    baselines: `block -> label` of the method that the others are compared with; empty if none.
    results: what was read.
    """

    entries: list[Entry]
    baselines: Mapping[str, str]
    results: Results

    def against(self, baseline: str) -> "Analysis":
        """The same with another baseline in every block that has this method.

        Raises:
            SettingError: no run has that method.
        """
        return _compared(self.entries, self.results, baseline)

    def frame(self) -> Any:
        """The entries as a pandas frame, a row each: the columns of `Results.frame` and more."""
        return frame_of(entry.record() for entry in self.entries)


def analyse(results: Results, baseline: str | None = None) -> Analysis:
    """Estimate, rank and compare.

    Args:
        results: what was read.
        baseline: method to compare with in every block; else the one the runs name, else `none`
            (a method of that name is plain RoPE), else no comparison is made.

    Raises:
        SettingError: `baseline` is given and no run has that method.
    """
    blocks = block_titles(results.scores, results.runs)
    labels = method_labels(results.scores, results.runs, blocks)
    entries = [
        _estimated(Entry(score, results.runs[score.run], block, label), results.ratios(score))
        for score, block, label in zip(results.scores, blocks, labels, strict=True)
    ]
    return _compared(_ranked(entries), results, baseline)


def grouped(items: Iterable[Item], key: Callable[[Item], Hashable]) -> dict[Any, list[Item]]:
    """Items by a key, keys and items in the order in which they come."""
    groups: dict[Any, list[Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)


def family(entry: Entry) -> tuple[str, str, str, str, int | None]:
    """What must agree before two numbers are ranked or compared."""
    score = entry.score
    return entry.block, entry.task, score.metric, score.chosen, score.context_length


def _estimated(entry: Entry, ratios: Ratios | None) -> Entry:
    """With the standard error and interval that the samples give."""
    score = entry.score
    if score.value is None or not score.finished:
        return entry
    estimate = _estimate(score.metric, ratios) if ratios is not None else None
    if estimate is None:
        return _reported(entry)
    return dataclasses.replace(
        entry,
        score=dataclasses.replace(score, stderr=estimate.stderr, clusters=estimate.clusters),
        low=estimate.low,
        high=estimate.high,
        interval=estimate.method,
    )


def _reported(entry: Entry) -> Entry:
    """With lm-eval's own standard error; where it claims certainty, with what is known instead."""
    score = entry.score
    if score.stderr is not None and not shows_no_spread(score.stderr, score.value or 0.0):
        return dataclasses.replace(entry, interval="reported")
    entry = dataclasses.replace(entry, score=dataclasses.replace(score, stderr=None))
    if score.percent == 100 and score.value in (0.0, 1.0) and score.n:
        low, high = clopper_pearson(round(score.value * score.n), score.n)
        return dataclasses.replace(entry, low=low, high=high, interval="exact")
    return entry


def _estimate(metric: str, ratios: Ratios) -> Estimate | None:
    if not ratios.questions.size:
        return None
    if not is_of_nats(metric):
        return estimate_mean(ratios.numerator, ratios.clusters) if ratios.are_scores else None
    _, tops, bottoms = ratios.by_cluster()
    if "bits_per_" in metric:
        tops = tops / math.log(2)
    try:
        return estimate_ratio(tops, bottoms, 1.0 if _is_exponential(metric) else None)
    except ValueError:
        return None


def _is_exponential(metric: str) -> bool:
    name = metric.partition(SIGN)[0]
    return "perplexity" in name or name.endswith("ppl")


def _ranked(entries: Sequence[Entry]) -> list[Entry]:
    """Dense rank within block, task and metric, each length apart: 1 is best.

    None where nobody knows which way is better.
    """
    ranks: dict[int, int] = {}
    finished = [e for e in entries if e.score.finished and e.score.higher_is_better is not None]
    for rivals in grouped(finished, family).values():
        better = {entry.score.higher for entry in rivals}
        order = sorted({_rounded(each) for each in rivals}, reverse=better == {True})
        if len(order) > 1 and len(better) == 1:
            ranks |= {id(entry): order.index(_rounded(entry)) + 1 for entry in rivals}
    return [dataclasses.replace(entry, rank=ranks.get(id(entry))) for entry in entries]


def _rounded(entry: Entry) -> float:
    return round(entry.score.value or 0.0, 12)


def _baseline(entries: Sequence[Entry], wanted: str | None) -> str:
    methods = {entry.label for entry in entries}
    named = [entry.run.baseline for entry in entries if entry.run.baseline]
    candidates = (wanted, *named[:1], "none", "default")
    return next((name for name in candidates if name and name in methods), "")


def _compared(entries: Sequence[Entry], results: Results, wanted: str | None) -> Analysis:
    """Paired comparison with the baseline, corrected within task, metric and context length."""
    if wanted is not None:
        one_of("baseline", wanted, sorted({entry.label for entry in entries}))
    baselines = {
        block: _baseline(part, wanted)
        for block, part in grouped(entries, lambda entry: entry.block).items()
    }
    finished = [entry for entry in entries if entry.score.finished]
    differences: dict[int, Difference] = {}
    for rivals in grouped(finished, family).values():
        base = [entry for entry in rivals if entry.label == baselines[entry.block]]
        if len(base) == 1 and len(rivals) > 1:
            differences |= _differences(rivals, base[0], results)
    return Analysis(
        [dataclasses.replace(each, difference=differences.get(id(each))) for each in entries],
        baselines,
        results,
    )


def _differences(entries: list[Entry], base: Entry, results: Results) -> dict[int, Difference]:
    """`id(entry) -> difference` of every rival of the baseline that can be paired with it."""
    baseline = results.ratios(base.score)
    if baseline is None:
        return {}
    rivals = [
        (entry, ratios)
        for entry in entries
        if entry is not base and (ratios := results.ratios(entry.score)) is not None
    ]
    threshold = LEVEL / max(1, len(rivals))
    differences = {
        id(entry): difference
        for entry, ratios in rivals
        if (difference := _difference(base.score, ratios, baseline, threshold)) is not None
    }
    adjusted = holm([difference.p for difference in differences.values()]).tolist()
    return {
        key: _marked(difference, p_holm, threshold)
        for (key, difference), p_holm in zip(differences.items(), adjusted, strict=True)
    }


def _marked(difference: Difference, p_holm: float, threshold: float) -> Difference:
    mark = SIGNIFICANT if p_holm <= LEVEL else ""
    mark = CANNOT_TELL if difference.smallest_p > threshold else mark
    return dataclasses.replace(difference, p_holm=p_holm, threshold=threshold, mark=mark)


def _difference(score: Score, method: Ratios, baseline: Ratios, level: float) -> Difference | None:
    """On the questions that both runs have, in one order; None where they cannot be paired."""
    method, baseline = in_common(method, baseline)
    if not method.questions.size or score.higher_is_better is None:
        return None
    if not is_of_nats(score.metric):
        if not (method.are_scores and baseline.are_scores):
            return None
        return compare_scores(
            method.numerator,
            baseline.numerator,
            baseline.clusters,
            level,
            higher_is_better=score.higher,
        )
    method = dataclasses.replace(method, clusters=baseline.clusters)
    _, tops, sizes = method.by_cluster()
    _, base_tops, base_sizes = baseline.by_cluster()
    if not np.array_equal(sizes, base_sizes):
        return None
    return compare_perplexities(tops, base_tops, sizes, level)
