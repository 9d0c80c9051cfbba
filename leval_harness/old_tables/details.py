"""The long table: one row per number, with everything known about it (the CSV)."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from leval_harness.analysis import Analysis
from leval_harness.old_results.run_record import TELEMETRY
from leval_harness.old_tables.model import Block, Cell, Column, Row, RowKind, Table, number_cell
from leval_harness.old_tables.published import TABLE_2, TASKS

FIRST = ("origin", "block", "model", "method", "task", "metric", "filter")
NUMBERS = (
    "context_length", "value", "stderr", "low", "high", "rank", "n", "clusters", "chance", "cut",
    "unparsed", "at_limit", "thinking_cut", "if_wrong", "if_right", "difference", "diff_low",
    "diff_high", "p", "p_holm", "smallest_p", "wins", "ties", "losses", "detectable", "limit",
    "seconds", "tokens_per_second", *TELEMETRY,
)  # fmt: skip
LAST = (
    "status", "note", "direction", "interval", "mark", "baseline", "source", "data", "python",
    "softmax", "run_id", "created", "command",
)  # fmt: skip
COLUMNS = (*FIRST, *NUMBERS, *LAST)
IN_PERCENT = (
    "value", "stderr", "low", "high", "if_wrong", "if_right", "difference", "diff_low", "diff_high",
    "detectable",
)  # fmt: skip
DIRECTIONS = {True: "higher", False: "lower", None: "unknown"}
NOTES = (
    "Shares of right answers, their errors, intervals, differences and detectable differences are "
    "percent; chance, cut, unparsed, at_limit and thinking_cut are shares from 0 to 1. Every other "
    "metric is as the results file has it, its unit being known to its task alone. Of perplexities "
    "difference, its ends and detectable are NLL in nats/token (or a word, a byte, a window, as "
    "the metric counts).",
)


def details_table(analysis: Analysis, published: bool = False) -> Table:
    """Every metric of every run, as numbers of full precision.

    Args:
        analysis: from `analyse`.
        published: add the paper's Table 2 as rows with origin `published`.
    """
    blocks = [_block(_records(analysis))]
    if published:
        blocks.append(_block(_published(), "published"))
    columns = tuple(Column(name, numeric=name in NUMBERS) for name in COLUMNS)
    return Table("All numbers", columns, tuple(blocks), NOTES)


def _block(records: Iterable[Mapping[str, Any]], kind: RowKind = "ours") -> Block:
    rows = []
    for record in records:
        cells = [
            Cell(value or "")
            if value is None or isinstance(value, str)
            else number_cell(value, ".6g")
            for value in map(record.get, COLUMNS)
        ]
        rows.append(Row(tuple(cells), kind))
    return Block("", tuple(rows))


def _records(analysis: Analysis) -> Iterator[Mapping[str, Any]]:
    """What each column holds, for each number."""
    for entry in analysis.entries:
        score, record = entry.score, entry.record()
        shown = {n: None if record[n] is None else score.percent * record[n] for n in IN_PERCENT}
        yield {
            **record,
            **shown,
            "origin": "sample" if score.sample else "partial" if score.partial else "ours",
            "method": entry.label,
            "filter": score.chosen,
            "direction": DIRECTIONS[score.higher_is_better],
            "baseline": analysis.baselines[entry.block],
            "run_id": entry.run.run_id,
        }


def _published() -> Iterator[Mapping[str, Any]]:
    for model, methods in TABLE_2.items():
        for method, (length, *values) in methods.items():
            for task, value in zip(TASKS, values, strict=True):
                yield {
                    "origin": "published", "block": f"{model} (published)", "model": model,
                    "method": method, "task": task, "context_length": length * 1024,
                    "value": value, "status": "published",
                    "source": "arXiv 2403.00071v2, Table 2",
                }  # fmt: skip
