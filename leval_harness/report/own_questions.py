"""The number of questions of each number, where a results file states that of its task alone."""

import pandas as pd

from leval_harness.report.retrieval import is_of_depth
from leval_tasks.closed.rules import TopicName
from leval_tasks.common.metrics import FAMILY_OF

UNEQUAL = ("mrcr",)
"""Families of tasks that ask another number of questions at each length."""

DIVIDED = ("retrieval", *UNEQUAL)
"""Families of tasks in which a number at a length is of that length's questions alone."""


def stated_questions(scores: pd.DataFrame) -> pd.Series:
    """Return how many questions each number is of, as far as its results file says.

    RULER and needle grids ask as many questions at each length and depth, topic retrieval at each
    position. So a number of one of them is of its share of the task's questions.

    Args:
        scores: rows of `scores` with what `runs` says of each run.

    Returns:
        The questions of each number; missing where the shares are unknown: at the lengths of MRCR,
        and where a run with several lengths excluded questions.
    """
    asked = scores["asked"].astype("float64")
    part = _kind_of_part(scores)
    keys = [scores["run"], scores["task"], scores["filter"], part]
    number_of_parts = scores.groupby(keys)["name"].transform("nunique")
    share = asked / number_of_parts
    is_unequal = scores["task"].map(FAMILY_OF).isin(UNEQUAL)
    is_partial = scores["partial"].fillna(False).astype(bool)
    is_known = (share % 1 == 0) & ~is_unequal & ~is_partial
    is_whole = (part == "") | (number_of_parts == 1)
    return asked.where(is_whole, share.where(is_known))


def _kind_of_part(scores: pd.DataFrame) -> pd.Series:
    """Return what each number is of: a `length`, `depth` or `position`; empty where of all."""
    names = scores["name"].fillna("")
    is_divided = scores["task"].map(FAMILY_OF).isin(DIVIDED)
    # RULER's metrics are lengths
    is_length = names.str.fullmatch(r"\d+") | (is_divided & names.str.contains("@", regex=False))
    # SFiction's parts, in contrast, are of every question
    is_position = names.isin(TopicName.parts) & scores["task"].map(FAMILY_OF).eq("closed")
    part = pd.Series("", scores.index).mask(is_length, "length")
    part = part.mask(is_of_depth(scores), "depth")
    return part.mask(is_position, "position")
