"""What is known of metrics by their names: direction, unit, and how samples become the figure.

lm-eval writes the direction of a metric and never its unit. A metric that is known to be a share is
shown in percent, every other one as it stands.
"""

import re
from collections.abc import Callable, Mapping

import numpy as np

from leval_tasks.closed.catalog import TASKS
from leval_tasks.closed.definition import SCORES
from leval_tasks.metric_names import SIGN
from leval_tasks.statistics.clustered import Ratios

LOSSES = r"perplexity|bits_per_|(^|_)ppl$|^(nll|loss|key_loss)$"
NATS = re.compile(rf"{LOSSES}|^gain$")
"""Metrics of sums of negative log-likelihoods over counts."""

LOWER = re.compile(rf"{LOSSES}|^(brier_score|ter|wer|cer|likelihood_diff|ece)$")
HIGHER = re.compile(
    r"^(acc|acc_norm|acc_bytes|acc_mutual_info|acc_all|exact_match|em|exact|f1|mcc|mc1|mc2|bleu|chrf"
    r"|rouge[12L]|contains|pass@\d+|\d+)$|_acc$|accuracy"
)
SHARE = re.compile(
    r"^(acc|exact_match|em|exact|f1|mc1|mc2|contains|recall|precision|pass(@|_at_)\d+|pct_stereotype"
    r"|extractive_match|math_verify|multiple_choice_grade)$"
    r"|^acc_|^exact_match|_acc$|accuracy|^(qa_f1|rouge|code_sim|classification|retrieval|count)_"
    r"(zh_)?(score)|^\d+$"
)
"""Shares of something, from 0 to 1; `f1` of SQuAD is percent, which its values show."""

IN_PERCENT = re.compile(r"^(squadv2|scrolls)")
"""Tasks of lm-eval that write F1 and exact matches from 0 to 100, where others write shares."""

LONG_CONTEXT_SCORE = re.compile(r"^(longbench|infinitebench|babilong|libra)")
"""Tasks whose `score` is a share."""

NOT_MEASURED = -1.0
"""What RULER writes for a length that was not asked."""

NO_METRIC = {"bypass"}
"""Stands where answers were kept and not scored."""

MEANS = {"acc", "acc_norm", "acc_bytes", "acc_mutual_info", "acc_all", "exact_match", "likelihood"}
"""Metrics that lm-eval averages where a task does not say otherwise."""


def lower_is_better(metric: str) -> bool:
    """Whether a metric is a perplexity, an error or a loss."""
    return bool(LOWER.search(metric.partition(SIGN)[0]))


def is_of_nats(metric: str) -> bool:
    """Whether a metric is made of negative log-likelihoods: a perplexity, a loss, bits."""
    return bool(NATS.search(metric.partition(SIGN)[0]))


def direction(metric: str, stated: object) -> bool | None:
    """Whether higher is better: what the results file says, else the name; None if neither does.

    None as well of a loss that a file calls better the higher it is: one of the two is wrong.
    """
    if isinstance(stated, bool):
        return None if stated and re.search(LOSSES, metric.partition(SIGN)[0]) else stated
    if lower_is_better(metric):
        return False
    return True if HIGHER.search(metric) else None


def is_share(task: str, metric: str) -> bool:
    """Whether a metric of another project's task is known to be a share."""
    if IN_PERCENT.match(task) and not metric.startswith("acc"):
        return False
    return bool(SHARE.search(metric) or (metric == "score" and LONG_CONTEXT_SCORE.match(task)))


def parts_of(task: str, metric: str) -> tuple[str, ...]:
    """Metrics of which a closed-ended score is the plain mean; nothing where it has no parts."""
    return TASKS[task].rule.parts if task in TASKS and metric in SCORES else ()


def length_of(metric: str) -> int | None:
    """The context length where that is all there is of a metric's name, as RULER's."""
    return int(metric) if metric.isdecimal() and len(metric) < 12 else None


def _mean(values: Ratios) -> float:
    return float(values.numerator.sum() / values.denominator.sum())


def _exponential(values: Ratios) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(_mean(values)))


_FIGURES: Mapping[str, Callable[[Ratios], float]] = {
    "mean": _mean,
    "perplexity": _exponential,
    "weighted_perplexity": _exponential,
    "bits_per_byte": lambda values: float(_mean(values) / np.log(2)),
}


def figure(metric: str, how: str, values: Ratios, *, is_ours: bool) -> tuple[float, bool]:
    """What a task's figure is by its samples, and whether it must be that.

    Args:
        metric: its name.
        how: aggregation that the task names; empty if it names none.
        values: of the questions that have it; at least one.
        is_ours: whether the task is one of ours, which all divide sums.

    Returns:
        the figure; where a task aggregates by its own code, a guess that need not be right.
    """
    family = metric.partition(SIGN)[0]
    known = is_ours or family in MEANS or length_of(metric) is not None
    name = "mean"
    if "bits_per_" in family:
        name, known = "bits_per_byte", True
    elif "perplexity" in family or family.endswith("ppl"):
        name, known = "perplexity", "perplexity" in family
    if how:
        name, known = how if how in _FIGURES else name, how in _FIGURES
    return _FIGURES[name](values), known
