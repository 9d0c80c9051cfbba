"""From analysed scores to the tables that people read."""

import math
from collections.abc import Sequence

from leval_harness.analysis import Analysis, Entry
from leval_harness.analysis.entries import FAMILY, grouped
from leval_harness.analysis.labels import BESIDE, CLOSED, POSGEN, length_label, task_label
from leval_harness.analysis.retrieval import retrievals
from leval_harness.old_tables.effective_context import retrieval_table
from leval_harness.old_tables.model import (
    METHOD,
    Block,
    Cell,
    Column,
    Row,
    Table,
    blocks_by_method,
)
from leval_harness.old_tables.notes import table_notes
from leval_harness.old_tables.published import published_tables
from leval_harness.old_tables.scores import COSTS, score_cell, score_table
from resonance_vllm.errors import one_of

PERPLEXITIES = {
    "token_perplexity": "token perplexity by context length, lower is better",
    "paper_perplexity": "paper perplexity by context length, lower is better",
}


def build_tables(
    analysis: Analysis,
    costs: Sequence[str] = (),
    published: bool | None = None,
    reference: str | None = None,
) -> list[Table]:
    """Every table that the results have rows for, the effective context first.

    Args:
        analysis: from `analyse`.
        costs: optional columns, names of `COSTS`.
        published: show the paper's tables; None shows them where a model of theirs or PosGen was
            run.
        reference: model whose key tokens get a table; None for no such table.

    Raises:
        SettingError: unknown name in `costs`, or a `reference` without results.
    """
    for name in costs:
        one_of("columns", name, COSTS)
    blocks = grouped(analysis.entries, lambda entry: entry.block)
    entries = [entry for block in blocks.values() for entry in block]  # one order in all tables
    shown = [entry for entry in entries if entry.score.primary]
    scores = [entry for entry in shown if entry.family not in ("perplexity", FAMILY)]
    tasks = {entry.task for entry in scores} - {""}
    closed = [task for task in (*CLOSED, *BESIDE) if task in tasks]
    posgen = [task for task in POSGEN if task in tasks]
    tables: list[Table] = []
    if found := retrievals(analysis):
        tables.append(retrieval_table(found))
    if closed:
        tables.append(score_table("L-Eval closed-ended, %", scores, closed, costs, analysis))
        for task in closed:
            part = [entry for entry in scores if entry.task == task]
            if len({entry.score.context_length for entry in part} - {None}) > 1:
                tables.append(_by_length(f"{task_label(task)} by context length, %", part))
    if posgen:
        title = "PosGen, out-of-distribution accuracy, %"
        tables.append(score_table(title, scores, posgen, costs, analysis))
    tables += _other_tables(scores, sorted(tasks - {*closed, *posgen}), costs, analysis)
    tables += _text_tables([e for e in shown if e.family == "perplexity"], analysis)
    tables += published_tables(
        (entry.run.model for entry in entries), (entry.task for entry in entries), published
    )
    stopped = [entry for entry in entries if entry.score.status != "done"]
    return tables + ([_problem_table(stopped)] if stopped else [])


def _other_tables(
    scores: Sequence[Entry], tasks: Sequence[str], costs: Sequence[str], analysis: Analysis
) -> list[Table]:
    """Tasks of other projects: shares in percent, and every other metric in its own unit."""
    others = [entry for entry in scores if entry.task in tasks]
    tables = []
    for title, times in (
        ("Other tasks, %", 100),
        ("Other tasks, each number in the metric's own unit", 1),
    ):
        part = [entry for entry in others if entry.score.percent == times]
        if any(entry.score.metric for entry in part) or (part and times == 100):
            tables.append(score_table(title, part, tasks, costs, analysis))
    return tables


def _text_tables(entries: Sequence[Entry], analysis: Analysis) -> list[Table]:
    """Of each task a table by length for each family of metrics in `PERPLEXITIES`.

    Runs that read the language reference of different Python versions get tables of their own. A
    paper perplexity that is everywhere the token perplexity (windows of one size) gets none.
    """
    tables = []
    for task, of_task in grouped(entries, lambda entry: entry.task).items():
        by_token = {
            (e.score.run, e.length): e.score.value
            for e in of_task
            if e.score.family == "token_perplexity"
        }
        for family, title in PERPLEXITIES.items():
            part = [entry for entry in of_task if entry.score.family == family]
            values = [(e.score.value, by_token.get((e.score.run, e.length))) for e in part]
            if family != "token_perplexity" and all(map(_equal, values)):
                continue
            texts = grouped(part, lambda entry: entry.score.python)
            for version, of_text in texts.items():
                python = f" (Python {version})" if len(texts) > 1 else ""
                name = f"{task_label(task)}{python}: {title}"
                tables.append(_by_length(name, of_text, table_notes(of_text, analysis)))
    return tables


def _equal(values: tuple[float | None, float | None]) -> bool:
    one, other = values
    return one is not None and other is not None and math.isclose(one, other, rel_tol=1e-9)


def _by_length(title: str, entries: Sequence[Entry], notes: tuple[str, ...] = ()) -> Table:
    """Methods down, context lengths across."""
    lengths = sorted({entry.length for entry in entries if entry.length is not None})

    def cells(part: Sequence[Entry]) -> list[Cell]:
        at = {entry.length: entry for entry in part}
        return [score_cell(at.get(length)) for length in lengths]

    blocks = blocks_by_method(entries, cells, method=lambda entry: entry.label)
    return Table(title, (METHOD, *map(Column, map(length_label, lengths))), blocks, notes)


def _problem_table(stopped: Sequence[Entry]) -> Table:
    """Runs that have no numbers, and why."""
    rows = []
    for entry, *_ in grouped(stopped, lambda e: (e.score.run, e.task, e.score.note)).values():
        score, length = entry.score, entry.score.context_length
        task = task_label(entry.task) or "–"
        texts = (entry.label, length_label(length), task, score.status, score.note)
        rows.append(Row(tuple(map(Cell, texts)), "stopped", entry.label, length))
    heads = ("Method", "Ctx", "Task", "State", "Reason")
    columns = tuple(Column(head, numeric=head == "Ctx") for head in heads)
    return Table("Without a number", columns, (Block("", tuple(rows)),))
