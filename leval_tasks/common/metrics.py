"""The table of metrics that this package's tasks or lm-eval's well-known tasks write.

A metric that is not in the table is shown as it is written, in the direction that lm-eval's results
file states.

Below the table: from the numbers of questions and documents to a task's figure and its standard
error. A perplexity is a ratio of two sums over documents, so documents carry `(numerator,
denominator)` pairs and one division is made at the end. Logarithms are natural.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from leval_tasks.statistics.by_document import clustered_stderr, known_error

SIGN = "@"
"""Between a metric and the length that it holds at, as in `token_perplexity@8192`."""

DEPTH = "depth_"
"""Beginning of a metric at one depth of a needle, in percent: `depth_50@8192`."""

NOT_AVAILABLE = "N/A"
"""What lm-eval writes in place of a figure, and we in place of a NaN, which is no JSON."""

MIN_CLUSTERS = 3
"""Documents below which a ratio has no standard error."""

FAMILY_OF = {
    file.stem: file.parent.parent.name for file in Path(__file__).parents[1].glob("*/tasks/*.yaml")
}
"""Each of our tasks and groups, and its family: the folder below `leval_tasks`."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Kind, direction, unit, aggregation and decimals of a metric.

    Attributes:
        kind: `loss` for negative log-likelihoods and what is made of them.
        higher_is_better: None where it is unknown, or neither is.
        unit: a `share` from 0 to 1 is shown in percent; empty where it is unknown.
        aggregation: how the values of the questions make the task's figure: `mean`; `ratio` (sum of
            the numerators over sum of the denominators), `perplexity` (exp of that ratio), `bits`
            (that ratio over ln 2); `own` for code of the task that nobody else knows.
        decimals: digits after the point in tables.
    """

    kind: Literal["score", "loss"]
    higher_is_better: bool | None
    unit: Literal["share", "percent", "perplexity", "nats", "bits", ""]
    aggregation: Literal["mean", "ratio", "perplexity", "bits", "own"]
    decimals: int


UNKNOWN = Metric("score", None, "", "own", 3)
SHARE = Metric("score", True, "share", "mean", 2)
_OWN_SHARE = replace(SHARE, aggregation="own")
_PERCENT = replace(UNKNOWN, higher_is_better=True, unit="percent")
_HIGHER = replace(UNKNOWN, higher_is_better=True)
_LOWER = replace(UNKNOWN, higher_is_better=False)
_PERPLEXITY = Metric("loss", False, "perplexity", "perplexity", 3)
_NATS = Metric("loss", False, "nats", "ratio", 3)

_EVERYWHERE: dict[str, Metric] = {
    "exact_match": SHARE,
    "perplexity": _PERPLEXITY,
    "word_perplexity": _PERPLEXITY,
    "byte_perplexity": _PERPLEXITY,
    "bits_per_byte": Metric("loss", False, "bits", "bits", 3),
    "nll": _NATS,
    "loss": _NATS,
}
OURS: dict[str, Metric] = {
    **_EVERYWHERE,
    **dict.fromkeys(("exact_match_strict", "loyalty", "factuality"), SHARE),
    **dict.fromkeys(("first", "second", "third"), SHARE),
    **dict.fromkeys(("accuracy", "id_accuracy", "ood_accuracy"), SHARE),
    **dict.fromkeys((f"{DEPTH}{percent}" for percent in range(101)), SHARE),
    **dict.fromkeys(("ruler_score", "mrcr"), SHARE),
    "token_perplexity": _PERPLEXITY,
    "paper_perplexity": _PERPLEXITY,
    "reference_loss": _NATS,
    "loss_difference": _NATS,
}
"""Metrics of our tasks, without the context lengths in their names."""

LM_EVAL: dict[str, Metric] = {
    **_EVERYWHERE,
    **dict.fromkeys(("acc", "acc_norm", "acc_bytes", "acc_mutual_info", "accuracy"), SHARE),
    **dict.fromkeys(("em", "exact", "contains", "recall", "precision", "math_verify"), SHARE),
    **dict.fromkeys(("acc_all", "f1", "mc1", "mc2"), _OWN_SHARE),
    **dict.fromkeys(("prompt_level_strict_acc", "prompt_level_loose_acc"), _OWN_SHARE),
    **dict.fromkeys(("inst_level_strict_acc", "inst_level_loose_acc"), _OWN_SHARE),
    **dict.fromkeys(("bleu_acc", "rouge1_acc", "rouge2_acc", "rougeL_acc"), _OWN_SHARE),
    **dict.fromkeys(("qa_f1_score", "qa_f1_zh_score", "code_sim_score"), _OWN_SHARE),
    **dict.fromkeys(("rouge_score", "rouge_zh_score", "classification_score"), _OWN_SHARE),
    **dict.fromkeys(("retrieval_score", "retrieval_zh_score", "count_score"), _OWN_SHARE),
    **{f"pass{at}{k}": _OWN_SHARE for at in ("@", "_at_") for k in (1, 2, 5, 8, 10, 32, 64, 100)},
    "pct_stereotype": replace(_OWN_SHARE, higher_is_better=None),
    "likelihood": replace(_HIGHER, aggregation="mean"),
    **dict.fromkeys(("mcc", "bleu", "chrf", "rouge1", "rouge2", "rougeL"), _HIGHER),
    **dict.fromkeys(("brier_score", "likelihood_diff", "ter", "wer", "cer", "ece"), _LOWER),
}
"""Metrics of lm-eval's well-known tasks."""

_OF_TASKS: dict[tuple[str, str], Metric] = {
    **{("squadv2", name): _PERCENT for name in ("exact", "f1")},
    **{("scrolls_", name): _PERCENT for name in ("exact", "exact_match", "em", "f1")},
    **{(task, "score"): _OWN_SHARE for task in ("longbench", "infinitebench", "babilong", "libra")},
}
"""`(beginning of a task's name, metric)` where a task gives a name its own meaning."""


def metric_of(name: str, task: str) -> Metric:
    """Return the entry of a task's metric; `UNKNOWN` where no table has it.

    Args:
        name: the metric, with its context length if it has one.
        task: lm-eval's name of the task.
    """
    family = split(name)[0]
    if length_of(name) is not None:
        return SHARE
    if task in FAMILY_OF:
        return OURS.get(family, UNKNOWN)
    for (task_prefix, metric_name), metric in _OF_TASKS.items():
        if metric_name == name and task.startswith(task_prefix):
            return metric
    return LM_EVAL.get(name) or LM_EVAL.get(family, UNKNOWN)


def directions(names: Iterable[str]) -> dict[str, bool]:
    """Return for metrics of this package's tasks whether higher is better, in lm-eval's form.

    Raises:
        KeyError: a metric that is missing in `OURS`.
    """
    return {
        name: not name.endswith("_stderr") and OURS[split(name)[0]].higher_is_better is True
        for name in names
    }


def compose(family: str, length: int) -> str:
    """Return `family@length`."""
    return f"{family}{SIGN}{length}"


def split(metric: str) -> tuple[str, int | None]:
    """Return the family of a metric and the length that it holds at: `("token_perplexity", 8192)`."""
    family, _, length = metric.partition(SIGN)
    return family, length_of(length)


def length_of(name: str) -> int | None:
    """Return the context length where that is a metric's whole name, as in RULER; else None."""
    return int(name) if name.isdecimal() and len(name) < 12 else None


def or_not_available(value: float) -> float | str:
    """Return the figure, `NOT_AVAILABLE` for NaN."""
    return NOT_AVAILABLE if math.isnan(value) else value


def stderr_of_mean(items: Iterable[tuple[Hashable, float]]) -> float | str:
    """Return the clustered standard error of a mean of scores, from (cluster, score) pairs."""
    return or_not_available(clustered_stderr(items))


def mean_of_known(values: Iterable[float | None]) -> float | str:
    """Return the mean of the values that a metric has, `N/A` where no question has one."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else NOT_AVAILABLE


def scores_of_all(
    scores: Mapping[str, float], names: Iterable[str], cluster: Hashable
) -> dict[str, Any]:
    """Return the scores of one question under every metric of its task, and what errors are made of.

    lm-eval states the number of questions of the last metric as that of the task, so that each
    question needs a value of each metric: None where it does not count.

    Args:
        scores: metric -> score, of the metrics in which the question counts.
        names: all metrics of the task.
        cluster: which questions depend on each other.
    """
    values: dict[str, Any] = {}
    for name in names:
        values[name] = scores.get(name)
        values[f"{name}_stderr"] = (cluster, scores[name]) if name in scores else None
    return values


def aggregations_of_known(names: Iterable[str]) -> dict[str, Callable[..., float | str]]:
    """Return how `scores_of_all` become figures: means, and their clustered standard errors."""
    functions: dict[str, Callable[..., float | str]] = {}
    for name in names:
        functions[name] = mean_of_known
        functions[f"{name}_stderr"] = _stderr_of_known
    return functions


def _stderr_of_known(items: Iterable[tuple[Hashable, float] | None]) -> float | str:
    """Return the clustered standard error of the scores that there are."""
    return stderr_of_mean([item for item in items if item is not None])


def with_stderr(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return each metric twice: the second one is aggregated into lm-eval's own field of standard errors."""
    doubled = {}
    for name, value in values.items():
        doubled[name] = value
        doubled[f"{name}_stderr"] = value
    return doubled


def aggregations(how: str) -> tuple[Callable[..., float | str], Callable[..., float | str]]:
    """Return the functions that make a figure and its standard error from the documents' pairs.

    The figure is N/A where nothing was counted, the error also below three documents and where all
    are equal. The error of a perplexity is by the delta method: `exp(R)` times that of `R`.

    Args:
        how: `aggregation` of a metric: `perplexity` or `bits`; any other is the ratio itself.
    """
    unit = math.log(2) if how == "bits" else 1.0

    def figure(pairs: Sequence[Sequence[float]]) -> float:
        """Return the ratio of the sums of numerators and denominators, in the metric's unit."""
        numerator = math.fsum(pair[0] for pair in pairs)
        denominator = math.fsum(pair[1] for pair in pairs)
        if not denominator:
            return math.nan
        ratio = numerator / denominator
        if how != "perplexity":
            return ratio / unit
        with np.errstate(over="ignore"):
            return float(np.exp(ratio))

    def value(pairs: Sequence[Sequence[float]]) -> float | str:
        return or_not_available(figure(pairs))

    def stderr(pairs: Sequence[Sequence[float]]) -> float | str:
        counted = [pair for pair in pairs if pair[1]]
        if len(counted) < MIN_CLUSTERS:
            return NOT_AVAILABLE
        error = known_error(*np.array(counted, dtype=np.float64).T)
        slope = figure(pairs) if how == "perplexity" else 1 / unit  # delta method
        return or_not_available(error * slope)

    return value, stderr
