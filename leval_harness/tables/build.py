"""From analysed scores to the tables that people read."""

from collections.abc import Sequence

from leval_border.errors import one_of
from leval_harness.analysis.analyse import Analysis, grouped
from leval_harness.analysis.entries import Entry
from leval_harness.analysis.notes import table_notes
from leval_harness.analysis.published import published_tables
from leval_harness.analysis.reach import reach_gaps, reach_lines
from leval_harness.analysis.reach_curves import KEY_LOSS, LOSS
from leval_harness.analysis.task_titles import BESIDE, CLOSED, POSGEN, length_label, task_label
from leval_harness.tables.cells import COSTS, number_cell
from leval_harness.tables.model import Block, Cell, Column, Row, Table
from leval_harness.tables.reach_tables import against_table, reach_table
from leval_harness.tables.scores import score_table


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
        SettingError: unknown name in `costs`.
    """
    for name in costs:
        one_of("columns", name, COSTS)
    shown = [entry for entry in analysis.entries if entry.score.primary]
    scores = [entry for entry in shown if entry.family not in ("perplexity", "reach")]
    tasks = {entry.task for entry in scores} - {""}
    closed = [task for task in (*CLOSED, *BESIDE) if task in tasks]
    posgen = [task for task in POSGEN if task in tasks]
    lines = reach_lines(analysis)
    answers = (reach_table(lines, reach_gaps(analysis)), against_table(lines))
    tables = [table for table in answers if table]
    if closed:
        tables.append(score_table("L-Eval closed-ended, %", scores, closed, costs, analysis))
        tables += _length_tables(scores, closed)
    if posgen:
        title = "PosGen, out-of-distribution accuracy, %"
        tables.append(score_table(title, scores, posgen, costs, analysis))
    tables += _other_tables(scores, sorted(tasks - {*closed, *posgen}), costs, analysis)
    tables += _reach_tables([e for e in analysis.entries if e.family == "reach"], analysis)
    tables += _perplexity_tables([entry for entry in shown if entry.is_perplexity], analysis)
    models = [entry.run.model for entry in analysis.entries]
    tables += published_tables(models, [entry.task for entry in analysis.entries], published)
    stopped = [entry for entry in analysis.entries if entry.score.status != "done"]
    return tables + ([_problem_table(stopped)] if stopped else [])


def _other_tables(
    scores: Sequence[Entry], tasks: Sequence[str], costs: Sequence[str], analysis: Analysis
) -> list[Table]:
    """Tasks of other projects: shares in percent, and every other metric as it stands."""
    others = [entry for entry in scores if entry.task in tasks]
    tables = []
    for title, scale in (
        ("Other tasks, %", 100),
        ("Other tasks, each number in the metric's own unit", 1),
    ):
        part = [entry for entry in others if entry.score.percent == scale]
        if any(entry.score.metric for entry in part) or (part and scale == 100):
            tables.append(score_table(title, part, tasks, costs, analysis))
    return tables


def _length_tables(scores: Sequence[Entry], tasks: Sequence[str]) -> list[Table]:
    """For each task the score by context length, where there are several lengths."""
    tables = []
    for task in tasks:
        part = [entry for entry in scores if entry.task == task]
        if len({entry.score.context_length for entry in part} - {None}) > 1:
            tables.append(_by_length(f"{task_label(task)} by context length, %", part))
    return tables


def _reach_tables(entries: Sequence[Entry], analysis: Analysis) -> list[Table]:
    """One table a task: the loss on its fixed targets, by what the model sees of the text.

    Beside it that on the key tokens, where the backend tells each token's.
    """
    tables = []
    for task, of_task in grouped(entries, lambda entry: entry.task).items():
        for family, what in ((LOSS, "nats a token"), (KEY_LOSS, "nats a key token")):
            part = [entry for entry in of_task if entry.score.family == family]
            if part:
                title = f"{task_label(task)}: {what}, the same tokens after more context"
                tables.append(_by_length(title, part, table_notes(part, analysis)))
    return tables


def _perplexity_tables(entries: Sequence[Entry], analysis: Analysis) -> list[Table]:
    """One table a task for token perplexity, and for the paper's where it was computed.

    Runs that read the language reference of different Python versions get tables of their own.
    """
    tables = []
    for task, of_task in grouped(entries, lambda entry: entry.task).items():
        for family in ("token_perplexity", "paper_perplexity"):
            part = [entry for entry in of_task if entry.score.family == family]
            texts = grouped(part, lambda entry: entry.score.python)
            for version, of_text in texts.items():
                python = f" (Python {version})" if len(texts) > 1 else ""
                what = f"{family.replace('_', ' ')} by context length, lower is better"
                title = f"{task_label(task)}{python}: {what}"
                tables.append(_by_length(title, of_text, table_notes(of_text, analysis)))
    return tables


def _by_length(title: str, entries: Sequence[Entry], notes: tuple[str, ...] = ()) -> Table:
    """Methods down, context lengths across."""
    lengths = sorted({entry.length for entry in entries if entry.length is not None})
    blocks = []
    for name, block in grouped(entries, lambda entry: entry.block).items():
        rows = []
        for label, of_method in grouped(block, lambda entry: entry.label).items():
            at = {entry.length: entry for entry in of_method}
            score = of_method[0].score
            cells = (Cell(label), *(number_cell(at.get(length)) for length in lengths))
            rows.append(Row(cells, "ours", label, None, score.partial, score.sample))
        blocks.append(Block(name, tuple(rows)))
    heads = (Column(length_label(length)) for length in lengths)
    columns = (Column("Method", numeric=False, kind="name"), *heads)
    return Table(title, columns, tuple(blocks), notes)


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
