"""The rows of the compared frame that tables, figures and sentences are about."""

import pandas as pd

from leval_harness.report.effective_context import TASK
from leval_harness.report.labels import is_across_models
from leval_tasks.common.metrics import FAMILY_OF

MAIN_METRICS = ("exact_match", "ood_accuracy", "acc_norm", "acc", "score", "f1", "accuracy", "mrcr")
"""Metrics in order of preference: the first that a task of this package has is its main number."""

PERPLEXITIES = ("token_perplexity", "paper_perplexity")


def main_numbers(compared: pd.DataFrame) -> pd.Series:
    """Return a mask of the numbers that tables show, one for each row of `compared`.

    Tasks of this package show their main metric and perplexities; other tasks show all of their
    metrics. Across models, bits per byte are shown beside token perplexities, which cannot be
    compared between tokenizers.
    """
    is_own_task = compared["task"].isin(list(FAMILY_OF))
    preference = compared["metric"].map({name: at for at, name in enumerate(MAIN_METRICS)})
    best = preference.groupby([compared["run"], compared["task"]]).transform("min")
    is_main_metric = preference.notna() & preference.eq(best)

    losses_shown = list(PERPLEXITIES)
    if is_across_models(compared):
        losses_shown.append("bits_per_byte")
    is_loss_shown = compared["metric"].isin(losses_shown)

    is_group = compared["group"].eq(True).fillna(False).astype(bool)
    is_effective_context = compared["task"].str.startswith(TASK)
    is_shown_of_own = (is_main_metric | is_loss_shown) & ~is_group
    has_table_here = compared["name"].notna() & ~is_effective_context
    is_shown = has_table_here & (~is_own_task | is_shown_of_own)
    return is_shown.fillna(False).astype(bool)


def is_higher_better(row: pd.Series) -> bool:
    """Return whether a higher number is better; so where it is unknown."""
    known = row["higher_is_better"]
    return bool(pd.isna(known) or known)
