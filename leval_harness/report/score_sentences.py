"""Sentences of the verdict on retrieval, and on how methods differ in scores and perplexities."""

import math
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import pandas as pd

from leval_harness.report.compare import CANNOT_TELL, SIGNIFICANT
from leval_harness.report.identical import identity_reason
from leval_harness.report.labels import counted, length_label, task_title
from leval_harness.report.next_step import NUMBER_OF_DOCUMENTS, have_no_further_documents
from leval_harness.report.number_text import number_text
from leval_harness.report.retrieval import retrievals
from leval_harness.report.selection import is_higher_better, main_numbers
from leval_tasks.statistics.by_document import LEVEL
from leval_tasks.statistics.retrieval import LEVEL as RETRIEVAL_LEVEL
from leval_tasks.statistics.retrieval import THRESHOLD

MOST_NAMED = 3
"""Differences that a sentence gives in numbers; the others are counted."""


def score_sentences(part: pd.DataFrame) -> Iterator[str]:
    """Yield the sentences on retrieval, then on differences from the baseline.

    The bundled sample decides nothing and gets no sentence.

    Args:
        part: the rows of one block in the compared frame.
    """
    for retrieval in retrievals(part).to_dict("records"):
        yield f"{retrieval['label']} {_retrieval(retrieval)}."
    is_compared = main_numbers(part) & part["difference"].notna() & part["sample"].ne(True)
    rows = part[is_compared]
    methods = rows.groupby(["task", "name", "length"], dropna=False)["label"].transform("nunique")
    for (label, baseline), of_pair in rows.groupby(["label", "baseline"], sort=False):
        reason = identity_reason(part, str(label), str(baseline))
        if reason:
            yield f"{label} is identical to {baseline} at every length measured: {reason}."
            continue
        most_methods = int(methods[of_pair.index].max())
        yield f"{label} compared with {baseline}: {_differences(of_pair, most_methods)}."


def _retrieval(retrieval: Mapping[Hashable, Any]) -> str:
    """Return up to which length RULER's tasks are answered, from a row of `retrievals`."""
    above = retrieval["above"]
    threshold = f"above {retrieval['threshold']}"
    measured = f"({', '.join(retrieval['tasks'])}; {questions_text(retrieval['questions'])})"
    if above == "cannot tell":
        needed = math.ceil(math.log(RETRIEVAL_LEVEL) / math.log(THRESHOLD))
        return (
            f"is undecided in retrieval {threshold} {measured}: at least {needed} questions per "
            "length are needed"
        )
    if above == "nowhere":
        return f"retrieves {threshold} at no length {measured}"
    return f"retrieves {threshold} up to {above} {measured}"


def questions_text(questions: Any) -> str:
    """Return `100 questions per length`, or the range of these counts."""
    counts = sorted({int(count) for count in questions})
    if len(counts) == 1:
        return f"{counted(counts[0], 'question')} per length"
    return f"{counts[0]} to {counts[-1]} questions per length"


def _differences(rows: pd.DataFrame, methods: int) -> str:
    """Return the significant differences, the longest context first, and counts of the others.

    Args:
        rows: the comparisons of a method with its baseline.
        methods: methods that are compared on the same questions; p-values are corrected for them.
    """
    significant = rows[rows["mark"] == SIGNIFICANT]
    significant = significant.sort_values("length", ascending=False, kind="stable")
    parts = [_difference(row) for _, row in significant.head(MOST_NAMED).iterrows()]
    if len(significant) > MOST_NAMED:
        parts.append(counted(len(significant) - MOST_NAMED, "further difference"))

    is_identical = _are_identical(rows)
    if is_identical.any():
        parts.append(f"identical answers in {counted(int(is_identical.sum()), 'comparison')}")
    is_undecided = rows["mark"].eq(CANNOT_TELL) & ~is_identical
    same = len(rows) - len(significant) - int(is_undecided.sum()) - int(is_identical.sum())
    if same:
        parts.append(f"no significant difference in {counted(same, 'comparison')}")
    if is_undecided.any():
        parts.append(_undecided(rows[is_undecided], methods))
    return "; ".join(parts)


def _are_identical(rows: pd.DataFrame) -> pd.Series:
    """Return where each question was answered alike: more documents would not distinguish these."""
    if not {"wins", "losses"} <= {*rows}:
        return pd.Series(False, rows.index)
    changed = rows["wins"].fillna(1) + rows["losses"].fillna(1)
    return changed.eq(0) & rows["difference"].eq(0)


def _undecided(rows: pd.DataFrame, methods: int) -> str:
    # A sign-flip test over documents gives no p below 2 / 2 ** documents.
    needed = math.ceil(1 + math.log2(methods / LEVEL))
    text = f"{counted(len(rows), 'comparison')} undecided"
    if _were_all_documents_read(rows):
        return f"{text}: the task has too few documents, {needed} are needed"
    return f"{text}: at least {needed} documents are needed"


def _were_all_documents_read(rows: pd.DataFrame) -> bool:
    """Return whether no document of the tasks is left that could be read in addition."""
    if not {"partial", "num_docs"} <= {*rows}:
        return False
    is_whole = rows["partial"].eq(False).all() and rows["num_docs"].isna().all()
    if NUMBER_OF_DOCUMENTS in rows and rows[NUMBER_OF_DOCUMENTS].notna().any():
        # a task that draws documents: it read all that it has where they are fewer than it drew
        return bool(is_whole and have_no_further_documents(rows))
    return bool(is_whole)


def _difference(row: pd.Series) -> str:
    """Return `4.2 points worse on Coursera at 8K (2.3 to 6.1)`; losses are in nats/token."""
    scale, digits, unit = _unit_of(row)
    is_loss = row["kind"] == "loss"
    is_larger = row["difference"] > 0
    is_better = is_larger == (not is_loss and is_higher_better(row))
    sign = 1 if is_larger else -1
    ends = sorted(sign * scale * row[end] for end in ("diff_low", "diff_high"))
    interval = " to ".join(number_text(end, digits) for end in ends)
    size = f"{scale * abs(row['difference']):.{digits}f} {unit}"
    word = "better" if is_better else "worse"
    if is_loss:
        word = "lower loss" if is_better else "higher loss"
    task = task_title(row["task"], row.get("source"), row.get("alias"))
    where = f"on {task} at {length_label(row['length'])}"
    return f"{size} {word} {where} ({interval})"


def _unit_of(row: pd.Series) -> tuple[float, int, str]:
    """Return what a difference is multiplied by, its digits and its unit."""
    if row["kind"] == "loss":
        return 1.0, 3, "nats/token"
    if row["unit"] == "share":
        return 100.0, 1, "points"
    return 1.0, 3, str(row["metric"])
