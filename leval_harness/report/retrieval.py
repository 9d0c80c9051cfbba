"""RULER's scores at several lengths, as the length up to which a model retrieves."""

from typing import Any

import pandas as pd

from leval_harness.report.labels import length_label
from leval_tasks.statistics.retrieval import RetrievalLength, Retrieved, length_above

RULER = r"niah_.*|ruler_.*"
"""Tasks of lm-eval's RULER; their numbers are named after lengths."""


def retrievals(compared: pd.DataFrame) -> pd.DataFrame:
    """Return how far each model retrieves under each method that was run with RULER's tasks.

    Args:
        compared: the compared frame.

    Returns:
        a row for each `block` and `label`: `tasks` that all `lengths` have, `questions` at each of
        them, and as a text `above`, the largest length that reaches RULER's threshold.
    """
    is_score = compared["task"].str.fullmatch(RULER) & compared["name"].str.fullmatch(r"\d+")
    rows = compared[is_score.eq(True)].dropna(subset=["value", "n"])
    retrieval_rows: list[dict[str, Any]] = []
    for (block, label), part in rows.groupby(["block", "label"], sort=False):
        # a mean over other tasks at another length would be compared with this one
        tasks = set.intersection(
            *(set(at_length["task"]) for _, at_length in part.groupby("length"))
        )
        common = part[part["task"].isin(tasks)]
        sums = common.assign(right=common["value"] * common["n"])
        sums = sums.groupby("length")[["right", "n"]].sum()
        counts = [Retrieved(int(row.Index), row.right, int(row.n)) for row in sums.itertuples()]
        if not counts:
            continue
        retrieval_rows.append({
            "block": block,
            "label": label,
            "tasks": tuple(sorted(tasks)),
            "lengths": tuple(map(int, sums.index)),
            "questions": tuple(map(int, sums["n"])),
            "above": length_text(length_above(counts)),
        })  # fmt: skip
    columns = ["block", "label", "tasks", "lengths", "questions", "above"]
    return pd.DataFrame(retrieval_rows, columns=columns)


def length_text(length: RetrievalLength) -> str:
    """Return a retrieval length in words: `8K, not 16K`, `at least 8K`, `nowhere`, `cannot tell`."""
    if length.low is None:
        return "cannot tell"
    if length.low == 0:
        return "nowhere"
    reached = length_label(length.low)
    if length.low == length.high and length.refused is not None:
        return f"{reached}, not {length_label(length.refused)}"
    return f"at least {reached}"
