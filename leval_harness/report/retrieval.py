"""Scores of retrieval at several lengths: how far a model finds, and at which depth it does not."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from leval_harness.report.labels import length_label
from leval_harness.report.number_text import joined_names, tokens_text
from leval_tasks.common.metrics import DEPTH, FAMILY_OF
from leval_tasks.statistics.retrieval import THRESHOLD, RetrievalLength, Retrieved, length_above

RULER = r"niah_.*|ruler_.*"
"""Tasks of lm-eval's RULER; their numbers are named after lengths."""

FAMILIES = ("retrieval", "mrcr")
"""Families of this package's tasks that hide needles, and have scores at several lengths."""

ACCURACY = "accuracy"
"""Their metric over all depths of a length."""

COLUMNS = [
    "model",
    "block",
    "label",
    "tasks",
    "lengths",
    "questions",
    "threshold",
    "above",
    "length",
]


def is_needle_grid(rows: pd.DataFrame) -> pd.Series:
    """Return where a number is of one of this package's retrieval tasks."""
    return rows["task"].map(FAMILY_OF).isin(FAMILIES)


def is_at_length(rows: pd.DataFrame) -> pd.Series:
    """Return where a number of these tasks is of one length, not over all lengths of a run."""
    return is_needle_grid(rows) & rows["name"].str.contains("@", regex=False).eq(True)


def is_of_depth(rows: pd.DataFrame) -> pd.Series:
    """Return where a number is of one depth and one length."""
    is_depth = rows["metric"].str.startswith(DEPTH).fillna(False).astype(bool)
    return is_needle_grid(rows) & is_depth


def retrievals(compared: pd.DataFrame) -> pd.DataFrame:
    """Return how far each model retrieves under each method, by RULER's tasks and by needle grids.

    Args:
        compared: the compared frame.

    Returns:
        a row for each `model`, `block`, `label` and kind of task: `tasks` that all `lengths` have,
        `questions` at each of them; as texts `threshold`, `above`, the largest length that reaches
        it, and `length`, the same as an effective context length. The threshold is RULER's: of
        RULER's tasks as it is, of needle grids a share of the own score at the shortest length.
    """
    names = compared["name"]
    is_ruler = compared["task"].str.fullmatch(RULER) & names.str.fullmatch(r"\d+")
    is_grid = is_needle_grid(compared) & compared["metric"].eq(ACCURACY)
    rows: list[dict[str, Any]] = []
    for is_kind, of_own in ((is_ruler, False), (is_grid, True)):
        of_kind = compared[is_kind.eq(True)].dropna(subset=["value", "n"])
        for (block, label), part in of_kind.groupby(["block", "label"], sort=False):
            row = _retrieval_of(part, of_own)
            if row:
                model = part["model"].iloc[0]
                rows.append({"model": model, "block": block, "label": label, **row})
    return pd.DataFrame(rows, columns=COLUMNS)


def _retrieval_of(part: pd.DataFrame, of_own: bool) -> dict[str, Any]:
    """Return how far one method retrieves; empty where no task has all lengths.

    Args:
        part: scores of one method at all lengths.
        of_own: whether the threshold is a share of the own score at the shortest length.
    """
    # a mean over other tasks at another length would be compared with this one
    tasks = set.intersection(*(set(at_length["task"]) for _, at_length in part.groupby("length")))
    common = part[part["task"].isin(tasks)]
    sums = common.assign(right=common["value"] * common["n"])
    sums = sums.groupby("length")[["right", "n"]].sum()
    counts = [Retrieved(int(row.Index), row.right, int(row.n)) for row in sums.itertuples()]
    if not counts:
        return {}
    lengths = tuple(map(int, sums.index))
    of_own = of_own and len(lengths) > 1  # a single length would be compared with itself
    bounds = length_above(counts, of_own=of_own)
    threshold = f"{100 * THRESHOLD:.1f}%"
    if of_own:
        threshold += f" of its own score at {length_label(lengths[0])}"
    above, length = length_text(bounds), effective_length_text(bounds, lengths)
    is_shortest_alone = of_own and bounds.low == lengths[0] and bounds.refused is None
    if is_shortest_alone:  # it reaches a share of its own score whatever that score is
        above, length = "cannot tell", f"undecided beyond {tokens_text(lengths[0])}"
    return {
        "threshold": threshold,
        "tasks": tuple(sorted(tasks)),
        "lengths": lengths,
        "questions": tuple(map(int, sums["n"])),
        "above": above,
        "length": length,
    }


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


def effective_length_text(length: RetrievalLength, measured: tuple[int, ...]) -> str:
    """Return an effective context length by retrieval, with what is undecided.

    Args:
        length: its bounds.
        measured: the lengths that were measured, ascending.
    """
    if length.low is None:
        return "undecided"
    if length.low == 0:
        return f"< {tokens_text(measured[0])}"
    reached = tokens_text(length.low)
    if length.low == measured[-1]:
        return f"≥ {reached} (longest measured)"
    undecided = [n for n in measured if length.low < n <= length.high]
    if undecided:
        names = joined_names(map(tokens_text, undecided), "and")
        return f"≥ {reached}, undecided at {names}"
    return f"{reached} (not {tokens_text(length.refused or 0)})"


def needle_grids(compared: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield block, task and rows of each needle grid; `depth` is in percent of the document."""
    rows = compared[is_of_depth(compared) & compared["status"].eq("done")]
    depth = rows["metric"].str.removeprefix(DEPTH).astype(float)
    rows = rows.assign(depth=depth).dropna(subset=["length"])
    for (block, task), part in rows.groupby(["block", "task"], sort=False):
        yield str(block), str(task), part
