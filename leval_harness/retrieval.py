"""How far does it retrieve? RULER's scores at several lengths, as rows of a frame."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from leval_harness.names import length_label
from leval_tasks.statistics.retrieval import (
    RetrievalLength,
    Retrieved,
    length_above,
    length_kept,
)

RULER = r"niah_.*|ruler_.*"
"""Tasks of lm-eval's RULER; their numbers are named after lengths."""


def retrievals(compared: pd.DataFrame) -> pd.DataFrame:
    """How far each model retrieves under each method that was run with RULER's tasks.

    Args:
        compared: the compared frame.

    Returns:
        a row for each `block` and `label`: `tasks` that all `lengths` have, `questions` of all
        lengths together; `above` is the largest length that reaches RULER's threshold, `kept` the
        largest that keeps the score at the shortest (a dash for one length), as texts.
    """
    rows = compared[compared["task"].str.fullmatch(RULER).fillna(False).astype(bool)]
    if len(rows):
        by_length = rows["name"].fillna("").str.fullmatch(r"\d+")
        rows = rows[by_length & rows["value"].notna() & rows["n"].notna()]
    found: list[dict[str, Any]] = []
    for (block, label), part in rows.groupby(["block", "label"], sort=False):
        by_length = part.groupby("length")
        common = set.intersection(*(set(each["task"]) for _, each in by_length))
        part = part[part["task"].isin(common)]
        counts = [
            Retrieved(int(length), float((each["value"] * each["n"]).sum()), int(each["n"].sum()))
            for length, each in part.groupby("length")
        ]
        if counts:
            found.append({"block": block, "label": label, **_said(counts, sorted(common))})
    return pd.DataFrame(
        found, columns=["block", "label", "tasks", "lengths", "questions", "above", "kept"]
    )


def _said(counts: Sequence[Retrieved], tasks: Sequence[str]) -> dict[str, Any]:
    """The columns of a row; `counts` are by length, ascending."""
    return {
        "tasks": tuple(tasks),
        "lengths": tuple(each.length for each in counts),
        "questions": sum(each.asked for each in counts),
        "above": length_text(length_above(counts)),
        "kept": length_text(length_kept(counts) if len(counts) > 1 else None),
    }


def length_text(length: RetrievalLength | None) -> str:
    """`8K, not 16K`, `at least 8K`, `nowhere` or `cannot tell`; a dash for None."""
    if length is None:
        return "–"
    if length.low is None:
        return "cannot tell"
    if length.low == 0:
        return "nowhere"
    shown = length_label(length.low)
    if length.known is None:
        return f"at least {shown}"
    return shown if length.refused is None else f"{shown}, not {length_label(length.refused)}"
