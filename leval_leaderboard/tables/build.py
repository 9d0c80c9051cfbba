"""From the analysed frame to the tables people read."""

import math
from collections.abc import Sequence
from typing import Any

from leval_leaderboard.results.chance import CHANCE_NOTE
from leval_leaderboard.tables.analysis import (
    CANNOT_TELL,
    PRECISE_SOFTMAX,
    SIGNIFICANT,
    Analysis,
    counted,
    lower_is_better,
)
from leval_leaderboard.tables.model import Block, Cell, Column, Emphasis, Row, Table
from leval_leaderboard.tables.names import CLOSED, POSGEN, length_label, task_label
from leval_leaderboard.tables.published import published_tables

COSTS = {
    "seconds": ("Seconds", "seconds", 1.0, "sum", ",.1f"),
    "tokens_per_second": ("Tokens/s", "tokens_per_second", 1.0, "mean", ",.1f"),
    "peak_memory": ("Peak GiB", "peak_memory_bytes", 1 / 2**30, "max", ",.1f"),
    "tokens_prefilled": ("Prefilled", "tokens_prefilled", 1.0, "sum", ",.0f"),
    "tokens_shared": ("Shared", "tokens_shared", 1.0, "sum", ",.0f"),
    "tokens_generated": ("Generated", "tokens_generated", 1.0, "sum", ",.0f"),
    "tokens_unique": ("Unique", "tokens_unique", 1.0, "sum", ",.0f"),
}
"""Optional columns: name on the command line -> (head, column of the frame, factor, how the runs of
a row are joined, format)."""

EMPHASIS: dict[int, Emphasis] = {1: "best", 2: "second"}


def build_tables(
    analysis: Analysis, costs: Sequence[str] = (), published: bool | None = None
) -> list[Table]:
    """Every table that the results have rows for, the closed-ended one first.

    Args:
        analysis: from `analyse`.
        costs: optional columns, names of `COSTS`.
        published: show the paper's tables; None shows them where a model of theirs or PosGen was
            run.

    Raises:
        ValueError: unknown name in `costs`.
    """
    unknown = [name for name in costs if name not in COSTS]
    if unknown:
        raise ValueError(f"columns: '{unknown[0]}' is unknown; one of {', '.join(COSTS)}")
    frame = analysis.frame
    shown = frame[frame["primary"].fillna(False).astype(bool)]
    is_perplexity = shown["metric"].map(lower_is_better) | shown["task"].str.startswith("ppl_")
    scores = shown[~is_perplexity]
    tables = []
    closed = [task for task in CLOSED if (scores["task"] == task).any()]
    more = ["leval_topic_retrieval"] if (scores["task"] == "leval_topic_retrieval").any() else []
    if closed or more:
        tables.append(_score_table("L-Eval closed-ended, %", scores, closed, more, costs, analysis))
        tables += _length_tables(scores, [*closed, *more])
    for title, names in (
        ("PosGen, out-of-distribution accuracy, %", list(POSGEN)),
        ("Other tasks, %", None),
    ):
        rest = set(scores["task"]) - set(CLOSED) - {"leval_topic_retrieval", ""}
        tasks = [t for t in names if t in rest] if names else sorted(rest - set(POSGEN))
        if tasks:
            tables.append(_score_table(title, scores, [], tasks, costs, analysis))
    tables += _perplexity_tables(shown[is_perplexity], analysis)
    tables += published_tables(frame["model"], frame["task"], published)
    problems = _problem_table(frame)
    return tables + ([problems] if problems else [])


def row_emphasis(rank: float) -> Emphasis:
    """Best, second or nothing."""
    return EMPHASIS.get(int(rank), "") if rank == rank else ""


def score_cell(row: Any, sole: bool = False) -> Cell:
    """A score in percent; `sole` rows have nobody to be ranked against."""
    if row is None:
        return Cell("–")
    if row["status"] != "done" or row["value"] != row["value"]:
        return Cell(f"({row['status']})", mark="")
    value, stderr = 100 * row["value"], 100 * row["stderr"]
    emphasis = "" if sole else row_emphasis(row["rank"])
    return Cell(
        f"{value:.2f}", value, f"{stderr:.2f}" if stderr == stderr else "", row["mark"], emphasis
    )


def _score_table(
    title: str,
    scores: Any,
    averaged: list[str],
    more: list[str],
    costs: Sequence[str],
    analysis: Analysis,
) -> Table:
    tasks = averaged + more
    part = scores[scores["task"].isin(tasks)]
    average = len(averaged) == len(CLOSED)
    heads = [task_label(task) for task in averaged] + (["Avg."] if average else [])
    heads += [task_label(task) for task in more] + ["Cut", "Unparsed"]
    columns = [Column("Method", numeric=False), Column("Ctx"), *map(Column, heads)]
    columns += [Column(COSTS[name][0]) for name in costs]
    blocks = [
        _score_block(str(name), block, averaged, more, average, costs)
        for name, block in part.groupby("block", sort=False)
    ]
    return Table(title, tuple(columns), tuple(blocks), tuple(_notes(part, analysis, average)))


def _rows_of(block: Any) -> list[tuple[tuple[str, float], dict[str, Any], Any]]:
    """`((method, length), {task: row}, rows)` in the order of the runs, lengths ascending."""
    found = []
    keyed = block.assign(length=block["context_length"].astype(float).fillna(-1))
    for key, rows in keyed.groupby(["label", "length"], sort=False):
        found.append((key, {row["task"]: row for _, row in rows.iterrows()}, rows))
    order = {label: at for at, label in enumerate(dict.fromkeys(block["label"]))}
    return sorted(found, key=lambda item: (item[0][1], order[item[0][0]]))


def _score_block(
    name: str, block: Any, averaged: list[str], more: list[str], average: bool, costs: Sequence[str]
) -> Block:
    entries = _rows_of(block)
    lengths = {
        length: sum(key[1] == length for key, _, _ in entries) for (_, length), _, _ in entries
    }
    averages = {key: _average(by_task, averaged) for key, by_task, _ in entries} if average else {}
    rows = []
    for key, by_task, rows_here in entries:
        sole = lengths[key[1]] < 2
        cells = [Cell(key[0]), Cell(length_label(key[1] if key[1] >= 0 else None))]
        cells += [score_cell(by_task.get(task), sole) for task in averaged]
        if average:
            cells.append(_average_cell(key, averages, sole))
        cells += [score_cell(by_task.get(task), sole) for task in more]
        cells += [_share(rows_here, "cut"), _share(rows_here, "unparsed")]
        cells += [_cost(rows_here, name_) for name_ in costs]
        stopped = (rows_here["status"] != "done").all()
        rows.append(Row(tuple(cells), "stopped" if stopped else "ours"))
    width = len(rows[0].cells) if rows else 0
    for label, text in (("questions/documents", _counts), ("chance", _chance)):
        info = [Cell(label), Cell("")]
        info += [text(block, task) for task in averaged] + ([Cell("")] if average else [])
        info += [text(block, task) for task in more]
        info += [Cell("")] * (width - len(info))
        if any(cell.text for cell in info[1:]):
            rows.append(Row(tuple(info), "info"))
    return Block(name, tuple(rows))


def _average(by_task: dict[str, Any], tasks: list[str]) -> tuple[float, float] | None:
    """Unweighted mean of the six and its standard error, or None if one is missing."""
    found = [by_task.get(task) for task in tasks]
    if any(row is None or row["status"] != "done" or row["value"] != row["value"] for row in found):
        return None
    values = [row["value"] for row in found if row is not None]
    errors = [row["stderr"] for row in found if row is not None]
    return sum(values) / len(values), math.sqrt(sum(e * e for e in errors)) / len(values)


def _average_cell(key: tuple[str, float], averages: dict[Any, Any], sole: bool) -> Cell:
    own = averages[key]
    if own is None:
        return Cell("–")
    rivals = sorted(
        {round(v[0], 12) for k, v in averages.items() if v is not None and k[1] == key[1]},
        reverse=True,
    )
    rank = rivals.index(round(own[0], 12)) + 1
    spread = f"{100 * own[1]:.2f}" if own[1] == own[1] else ""
    return Cell(
        f"{100 * own[0]:.2f}", 100 * own[0], spread, "", "" if sole else EMPHASIS.get(rank, "")
    )


def _share(rows: Any, column: str) -> Cell:
    """Share of all questions of a row, weighted by their number."""
    known = rows[rows[column].notna() & (rows["status"] == "done")]
    total = known["n"].sum()
    if not total:
        return Cell("–")
    share = 100 * float((known[column] * known["n"]).sum() / total)
    return Cell(f"{share:.1f}", share)


def _cost(rows: Any, name: str) -> Cell:
    """Time and tokens add up over the runs of a row; speed and memory are averaged or largest."""
    _, column, factor, how, style = COSTS[name]
    values = rows.drop_duplicates("run")[column].dropna().astype(float) * factor
    if not len(values):
        return Cell("–")
    value = float(values.agg(how))
    return Cell(format(value, style), value)


def _counts(block: Any, task: str) -> Cell:
    rows = block[(block["task"] == task) & (block["status"] == "done")]
    found = sorted({(row.n, row.clusters) for row in rows.itertuples() if row.n == row.n})
    if not found:
        return Cell("")
    texts = [f"{n:g}/{g:g}" if g == g else f"{n:g}/–" for n, g in found]
    return Cell(texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}")


def _chance(block: Any, task: str) -> Cell:
    values = block.loc[block["task"] == task, "chance"].dropna()
    return (
        Cell(f"{100 * values.iloc[0]:.1f}", 100 * float(values.iloc[0]))
        if len(values)
        else Cell("")
    )


def _notes(part: Any, analysis: Analysis, average: bool | None) -> list[str]:
    """What the reader needs to know; only notes that apply."""
    notes = []
    done = part[part["status"] == "done"]
    if done["sample"].any():
        notes.append(
            "sample: made with the bundled sample, which only shows that everything runs; "
            "its scores say nothing about L-Eval"
        )
    if (done["interval"] == "reported").any():
        notes.append("± where no samples were logged: lm-eval's own standard error")
    if done["interval"].isin(["clustered", "exact"]).any():
        notes.append("±: standard error, clustered by document (CR2)")
    baselines = sorted({analysis.baselines[b] for b in set(part["block"])} - {""})
    if baselines and done["p"].notna().any():
        notes.append(
            f"{SIGNIFICANT}: differs from the baseline ({', '.join(baselines)}) on the same "
            "questions: sign-flip over documents, McNemar's exact test where each question is its "
            "own document; Holm-corrected within the task, 5% level"
        )
    for (task, clusters), rows in done[done["mark"] == CANNOT_TELL].groupby(
        ["task", "clusters"], sort=False
    ):
        worst = rows.iloc[0]
        notes.append(
            f"{CANNOT_TELL}: {task_label(str(task))}: {counted(clusters, 'document')} cannot tell: "
            f"the smallest possible p is {worst['smallest_p']:.3g}, the threshold "
            f"{worst['threshold']:.3g}"
        )
    if average is False:
        notes.append("No average: fewer than six tasks")
    if done["cut"].notna().any():
        notes.append(
            "Cut: share of the questions whose document was shortened, %; "
            "Unparsed: share of the answers in which no option or number was found, %"
        )
    if done["chance"].notna().any():
        notes.append(CHANCE_NOTE)
    if not done["softmax"].isin(PRECISE_SOFTMAX).all():
        notes.append(
            "softmax: not float32, or not known to be: bfloat16 shifts a perplexity by some tenths "
            "of a percent"
        )
    if done["partial"].any():
        notes.append("partial: run with a limit, never ranked beside full runs")
    return notes


def _length_tables(scores: Any, tasks: list[str]) -> list[Table]:
    """For each task the score by context length, where there are several lengths."""
    tables = []
    for task in tasks:
        part = scores[scores["task"] == task]
        if part["context_length"].nunique() > 1:
            title = f"{task_label(task)} by context length, %"
            tables.append(_by_length(title, part, "context_length", score_cell, ()))
    return tables


def perplexity_cell(row: Any, sole: bool = False) -> Cell:
    """A perplexity (or bits a byte) with its standard error."""
    if row is None:
        return Cell("–")
    if row["status"] != "done" or row["value"] != row["value"]:
        return Cell(f"({row['status']})")
    stderr = f"{row['stderr']:.3f}" if row["stderr"] == row["stderr"] else ""
    emphasis = "" if sole else row_emphasis(row["rank"])
    return Cell(f"{row['value']:.3f}", float(row["value"]), stderr, row["mark"], emphasis)


def _by_length(title: str, part: Any, column: str, cell: Any, notes: Sequence[str]) -> Table:
    """Methods down, context lengths across."""
    lengths = sorted({float(x) for x in part[column].dropna()})
    blocks = []
    for name, block in part.groupby("block", sort=False):
        rows = []
        sole = block["label"].nunique() < 2
        for label, own in block.groupby("label", sort=False):
            by_length = {float(row[column]): row for _, row in own.iterrows()}
            cells = [Cell(str(label)), *(cell(by_length.get(x), sole) for x in lengths)]
            rows.append(Row(tuple(cells)))
        blocks.append(Block(str(name), tuple(rows)))
    columns = (Column("Method", numeric=False), *(Column(length_label(x)) for x in lengths))
    return Table(title, columns, tuple(blocks), tuple(notes))


def _perplexity_tables(part: Any, analysis: Analysis) -> list[Table]:
    """One table a task for token perplexity, and for the paper's where it was computed.

    Runs that read the language reference of different Python versions get tables of their own.
    """
    tables = []
    names = [str(metric).partition("@") for metric in part["metric"]]
    lengths = [float(n) if n.isdigit() and len(n) < 12 else math.nan for _, _, n in names]
    part = part.assign(family=[name for name, _, _ in names], at=lengths)
    part["at"] = part["at"].fillna(part["context_length"].astype(float))
    for task in dict.fromkeys(part["task"]):
        for family in ("token_perplexity", "paper_perplexity"):
            found = part[(part["task"] == task) & (part["family"] == family)]
            what = f"{family.replace('_', ' ')} by context length, lower is better"
            texts = found.groupby(found["python"].fillna(""), sort=False)
            for version, rows in texts:
                python = f" (Python {version})" if len(texts) > 1 else ""
                notes = _notes(rows, analysis, None)
                title = f"{task_label(task)}{python}: {what}"
                tables.append(_by_length(title, rows, "at", perplexity_cell, notes))
    return tables


def _problem_table(frame: Any) -> Table | None:
    """Runs that have no numbers, and why."""
    bad = frame[frame["status"] != "done"]
    if not len(bad):
        return None
    rows = [
        Row(
            (Cell(row["label"]), Cell(length_label(row["context_length"])),
             Cell(task_label(row["task"]) or "–"), Cell(row["status"]), Cell(row["note"])),
            "stopped",
        )
        for _, row in bad.drop_duplicates(["run", "task", "note"]).iterrows()
    ]  # fmt: skip
    columns = ("Method", "Ctx", "Task", "State", "Reason")
    return Table(
        "Without a number", tuple(Column(c, numeric=c == "Ctx") for c in columns),
        (Block("", tuple(rows)),),
    )  # fmt: skip
