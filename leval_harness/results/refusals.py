"""Why a figure must not be shown: what it, its samples and their number say against it."""

from typing import Any

from leval_harness.results.fields import finite
from leval_harness.results.lm_eval import Figure
from leval_harness.results.samples import Samples
from leval_harness.results.scores import FAMILY_OF, Score
from leval_tasks.metric_names import SIGN
from leval_tasks.statistics.clustered import Ratios

ROUNDING = 1e-9


def refusal(base: Score, each: Figure, samples: Samples | None, asked: float | None) -> str:
    """Why a figure must not be shown; empty where nothing is against it.

    Args:
        base: what holds for all scores of the task.
        each: the figure.
        samples: of the task; None where none were logged.
        asked: how many questions were asked, as the results file says; None if it does not.
    """
    number = finite(each.value)
    if number is None:
        return "not a finite number"
    are_fractions = FAMILY_OF.get(base.task) in ("closed", "posgen") and SIGN not in each.metric
    if are_fractions and not -ROUNDING <= number <= 1 + ROUNDING:
        return f"{number:g} is outside 0..1"
    if "perplexity" in each.metric and number < 1 - ROUNDING:
        return f"a perplexity of {number:g} is below 1"
    return "" if samples is None else _of_samples(base, each, samples, asked)


def _of_samples(base: Score, each: Figure, samples: Samples, asked: float | None) -> str:
    if samples.bad:
        return f"{samples.bad} lines of the samples file are not JSON"
    if asked is not None and asked != base.n:
        return f"{asked:g} samples were scored, {base.n} are logged"
    if each.metric in samples.damaged and base.task in FAMILY_OF:
        return "a sample's score is not a number"
    ratios = samples.ratios(each.metric, each.chosen)
    if FAMILY_OF.get(base.task) in ("closed", "posgen") and ratios and _outside(ratios).any():
        return "a sample's score is outside 0..1"
    return ""


def _outside(ratios: Ratios) -> Any:
    """Which scores are no shares `[n]`; a ratio of sums may be anything."""
    return (ratios.denominator == 1) & ((ratios.numerator < 0) | (ratios.numerator > 1))
