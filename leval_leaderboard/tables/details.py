"""The long table: one row a number, with everything known about it (the CSV)."""

from collections.abc import Mapping

from leval_leaderboard.results.runs import TELEMETRY
from leval_leaderboard.tables.analysis import Analysis
from leval_leaderboard.tables.entries import Entry
from leval_leaderboard.tables.model import Block, Cell, Column, Row, Table
from leval_leaderboard.tables.published import TABLE_2, TASKS

TEXT = (
    "origin", "block", "model", "method", "task", "metric", "status", "note", "interval", "mark",
    "baseline", "source", "data", "python", "softmax", "run_id", "created", "command",
)  # fmt: skip
NUMBERS = (
    "context_length", "value", "stderr", "low", "high", "rank", "n", "clusters", "chance", "cut",
    "unparsed", "difference", "diff_low", "diff_high", "p", "p_holm", "smallest_p", "wins", "ties",
    "losses", "detectable", "limit", "seconds", "tokens_per_second", *TELEMETRY,
)  # fmt: skip
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
    rows = [Row(_cells(_record(entry, analysis))) for entry in analysis.entries]
    blocks = [Block("", tuple(rows))]
    if published:
        blocks.append(Block("", tuple(_published()), published=True))
    columns = tuple(Column(name, numeric=name in NUMBERS) for name in COLUMNS)
    return Table("All numbers", columns, tuple(blocks), NOTES)


Record = Mapping[str, str | float | None]


def _record(entry: Entry, analysis: Analysis) -> Record:
    """What stands in each column."""
    score, run, difference = entry.score, entry.run, entry.difference
    times = score.percent

    def shown(number: float | None) -> float | None:
        return None if number is None else times * number

    return {
        "origin": "sample" if score.sample else "partial" if score.partial else "ours",
        "block": entry.block, "model": run.model, "method": entry.label, "task": score.task,
        "metric": score.metric, "context_length": run.context_length,
        "value": shown(score.value), "stderr": shown(score.stderr),
        "low": shown(entry.low), "high": shown(entry.high), "rank": entry.rank,
        "n": score.n, "clusters": score.clusters, "chance": score.chance, "cut": score.cut,
        "unparsed": score.unparsed,
        **({} if difference is None else {
            "difference": shown(difference.difference), "diff_low": shown(difference.low),
            "diff_high": shown(difference.high), "p": difference.p, "p_holm": difference.p_holm,
            "smallest_p": difference.smallest_p, "wins": difference.wins, "ties": difference.ties,
            "losses": difference.losses, "detectable": shown(difference.detectable),
        }),
        "limit": run.limit, "seconds": run.seconds, "tokens_per_second": run.tokens_per_second,
        **{name: run.telemetry.get(name) for name in TELEMETRY},
        "status": score.status, "note": score.note, "interval": entry.interval,
        "mark": entry.mark, "baseline": analysis.baselines[entry.block], "source": score.source,
        "data": score.data, "python": score.python, "softmax": score.softmax,
        "run_id": run.run_id, "created": run.created, "command": run.command,
    }  # fmt: skip


def _cells(record: Record) -> tuple[Cell, ...]:
    return tuple(_cell(name, record.get(name)) for name in COLUMNS)


def _cell(name: str, value: str | float | None) -> Cell:
    if value is None or isinstance(value, str):
        return Cell(value or "")
    return Cell(f"{value:.6g}", float(value))


def _published() -> list[Row]:
    return [
        Row(
            _cells({
                "origin": "published", "block": f"{model} (published)", "model": model,
                "method": method, "task": task, "context_length": length * 1024, "value": value,
                "status": "published", "source": "arXiv 2403.00071v2, Table 2",
            }),
            "published",
        )
        for model, methods in TABLE_2.items()
        for method, (length, *values) in methods.items()
        for task, value in zip(TASKS, values, strict=True)
    ]  # fmt: skip
