"""The long table: one row a number, with everything known about it (the CSV)."""

from typing import Any

from leval_leaderboard.tables.analysis import Analysis, lower_is_better
from leval_leaderboard.tables.model import Block, Cell, Column, Row, Table
from leval_leaderboard.tables.published import TABLE_2, TASKS

TEXT = (
    "origin", "block", "model", "method", "task", "metric", "status", "note", "interval", "mark",
    "baseline", "source", "data", "python", "softmax", "run_id", "created", "command",
)  # fmt: skip
NUMBERS = (
    "context_length", "value", "stderr", "low", "high", "rank", "n", "clusters", "chance", "cut",
    "unparsed", "difference", "diff_low", "diff_high", "p", "p_holm", "smallest_p", "wins", "ties",
    "losses", "detectable", "limit", "seconds", "tokens_per_second", "peak_memory_bytes",
    "tokens_prefilled", "tokens_shared", "tokens_generated", "tokens_unique",
)  # fmt: skip
PERCENT = {"value", "stderr", "low", "high", "difference", "diff_low", "diff_high", "detectable"}
COLUMNS = (*TEXT[:6], *NUMBERS, *TEXT[6:])
NOTES = (
    "Scores, their errors, intervals, differences and detectable differences are percent; "
    "chance, cut and unparsed are shares from 0 to 1. For perplexities value, stderr, low and high "
    "are in the metric's unit; difference, its ends and detectable are nats a token (or a word, "
    "a byte, a window, as the metric counts).",
)


def details_table(analysis: Analysis, published: bool = False) -> Table:
    """Every metric of every run, as numbers of full precision.

    Args:
        analysis: from `analyse`.
        published: add the paper's Table 2 as rows with origin `published`.
    """
    rows = [_row(record, analysis) for record in analysis.frame.to_dict("records")]
    blocks = [Block("", tuple(rows))]
    if published:
        blocks.append(Block("", tuple(_published()), published=True))
    columns = tuple(Column(name, numeric=name in NUMBERS) for name in COLUMNS)
    return Table("All numbers", columns, tuple(blocks), NOTES)


def _row(record: dict[str, Any], analysis: Analysis) -> Row:
    run = analysis.results.runs[int(record["run"])]
    record = {
        **record,
        "origin": "sample" if record["sample"] else "partial" if record["partial"] else "ours",
        "method": record["label"],
        "baseline": analysis.baselines.get(record["block"], ""),
        "run_id": run.run_id,
    }
    percent = not lower_is_better(str(record["metric"]))
    return Row(tuple(_cell(name, record.get(name), percent) for name in COLUMNS))


def _cell(name: str, value: Any, percent: bool) -> Cell:
    if name in TEXT:
        return Cell("" if value is None or value != value else str(value))
    if value is None or value != value:
        return Cell("")
    number = float(value) * (100 if percent and name in PERCENT else 1)
    return Cell(f"{number:.6g}", number)


def _published() -> list[Row]:
    rows = []
    for model, methods in TABLE_2.items():
        for method, (length, *values) in methods.items():
            for task, value in zip(TASKS, values, strict=True):
                record = {
                    "origin": "published", "block": f"{model} (published)", "model": model,
                    "method": method, "task": task, "context_length": length * 1024,
                    "value": value, "status": "published", "source": "arXiv 2403.00071v2, Table 2",
                }  # fmt: skip
                rows.append(
                    Row(tuple(_cell(n, record.get(n), percent=False) for n in COLUMNS), "published")
                )
    return rows
