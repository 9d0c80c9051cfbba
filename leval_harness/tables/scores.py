"""Tables of scores: a row for each method and context length, a column for each task."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from leval_harness.analysis.analyse import Analysis, grouped
from leval_harness.analysis.blocks import unlike
from leval_harness.analysis.entries import Entry
from leval_harness.analysis.notes import table_notes
from leval_harness.analysis.published import published_block, sizes_of
from leval_harness.analysis.task_titles import BESIDE, CLOSED, length_label, task_label
from leval_harness.results import Score
from leval_harness.results.metrics import is_of_nats, length_of
from leval_harness.results.scores import FAMILY_OF
from leval_harness.results.task_scores import PRIMARY
from leval_harness.tables.cells import (
    COSTS,
    average_cell,
    chance_cell,
    chance_of,
    cost_cell,
    counts_cell,
    number_cell,
    share_cell,
)
from leval_harness.tables.model import Block, Cell, Column, Row, Table, ranked

SHARES = {"cut": "Cut", "unparsed": "Unparsed"}
OUT_OF_TOKENS = {"at_limit": "At limit", "thinking_cut": "Thinking cut"}

HIDDEN = ("word_perplexity", "byte_perplexity", "bits_per_byte")
"""Families that no table of several tasks shows: they repeat the token perplexity."""


def score_table(
    title: str,
    entries: Sequence[Entry],
    tasks: Sequence[str],
    costs: Sequence[str],
    analysis: Analysis,
) -> Table:
    """Scores of some tasks, with the share cut and unparsed, counts, chance and `COSTS` by name.

    The tasks are columns in this order; the paper's six are averaged if all are there.
    """
    entries = [entry for entry in entries if entry.task in tasks]
    heading = headings(entries)
    columns = _columns(entries, tasks, heading)
    shares = shares_of(entries)
    more = [Column(head) for head in shares.values()]
    more += [Column(COSTS[name].head) for name in costs]

    def more_cells(line: Sequence[Entry]) -> list[Cell]:
        return [
            *(share_cell(line, share) for share in shares),
            *(cost_cell(line, COSTS[name]) for name in costs),
        ]

    def block_of(name: str, block: Sequence[Entry]) -> Block:
        rows = _rows(block, columns, heading, more_cells)
        return Block(name, (*rows, *_information(block, columns, len(more))))

    parts = grouped(entries, lambda entry: entry.block).items()
    blocks = [block_of(name, block) for name, block in parts]
    average = any(column.kind == "average" for column in columns) or not {*tasks} & {*CLOSED}
    notes = table_notes(entries, analysis, average)
    return Table(title, (*columns, *more), tuple(blocks), notes)


def shares_of(entries: Sequence[Entry]) -> dict[str, str]:
    """Shares that stand beside scores, and their heads: fields of `Score`.

    Those of answers that ran out of tokens stand where they are known.
    """
    known = [
        name for name in OUT_OF_TOKENS if any(getattr(e.score, name) is not None for e in entries)
    ]
    return SHARES | {name: OUT_OF_TOKENS[name] for name in known}


def leaderboard_table(analysis: Analysis) -> Table:
    """Everything on one board: all tasks and perplexities, and the paper's rows of its models.

    A number stands in the row of the length that its metric names, else of its run's.
    """
    entries = [e for e in analysis.entries if e.score.primary and e.score.family not in HIDDEN]
    entries = without_twins(entries)
    heading = headings(entries, with_length=False)
    columns = _columns(entries, (*CLOSED, *BESIDE), heading)
    blocks = [
        Block(name, tuple(_rows(block, columns, heading, length_of_row=lambda entry: entry.length)))
        for name, block in grouped(entries, lambda entry: entry.block).items()
    ]
    models = [entry.run.model for entry in analysis.entries]
    blocks += [published_block(size, columns) for size in sorted(sizes_of(models))]
    return Table("Leaderboard", tuple(columns), tuple(blocks), table_notes(entries, analysis))


def without_twins(entries: Sequence[Entry]) -> list[Entry]:
    """Without the paper's perplexity where the token perplexity of the same run says the same."""
    token = {(e.score.run, e.task) for e in entries if e.score.family == "token_perplexity"}
    return [
        entry
        for entry in entries
        if entry.score.family != "paper_perplexity" or (entry.score.run, entry.task) not in token
    ]


Heading = Callable[[Entry], str]


def _columns(entries: Sequence[Entry], tasks: Sequence[str], heading: Heading) -> list[Column]:
    """Method, length, and what entries stand under: some tasks in order, then others as they come.

    An average stands behind the paper's six.
    """
    place = {task: at for at, task in enumerate(tasks)}
    columns = [
        _column(label, part)
        for label, part in grouped([e for e in entries if e.task], heading).items()
    ]
    columns.sort(key=lambda column: place.get(column.task, len(place)))
    if set(CLOSED) <= {column.task for column in columns}:
        columns.insert(len(CLOSED), Column("Avg.", kind="average"))
    return [Column("Method", numeric=False, kind="name"), Column("Ctx", kind="length"), *columns]


def _column(label: str, entries: Sequence[Entry]) -> Column:
    scores = [entry.score for entry in entries if entry.score.metric]
    return Column(
        label,
        kind="task",
        task=entries[0].task,
        lower_is_better=any(score.higher_is_better is False for score in scores),
        percent=all(score.percent == 100 for score in scores),
        nats=any(is_of_nats(score.metric) for score in scores),
        chance=chance_of(entries),
    )


def headings(entries: Sequence[Entry], *, with_length: bool = True) -> Heading:
    """What each entry stands under: the task, and of a perplexity which one and its length.

    Without the length, which a row may say, all lengths of a perplexity stand under one heading.

    Of another project's task the metric and the filter, where it has several, or a metric that does
    not go without saying. What has no number stands under the first.
    """
    measured: dict[str, dict[tuple[str, str], Entry]] = defaultdict(dict)
    for entry in entries:
        if entry.score.metric and length_of(entry.score.metric) is None:
            measured[entry.task].setdefault((entry.score.metric, entry.score.chosen), entry)

    def at(score: Score) -> str:
        return f"@{length_label(score.at)}" if with_length else ""

    meant: dict[str, tuple[str, ...]] = {}

    def heading(entry: Entry) -> str:
        if not entry.score.metric:
            entry = next(iter(measured[entry.task].values()), entry)
        score = entry.score
        is_length, ours = length_of(score.metric) is not None, entry.task in FAMILY_OF
        what = () if is_length or ours else (score.metric, score.chosen)
        return unlike(called(entry), (entry.task, *what), meant)

    def called(entry: Entry) -> str:
        score, label = entry.score, task_label(entry.task)
        if entry.is_perplexity and score.at is not None:
            return f"{label} {score.family.split('_')[0]} ppl{at(score)}"
        if entry.family == "reach" and score.at is not None:
            return f"{label} {score.family}{at(score)}"
        if score.task in FAMILY_OF or not score.metric or length_of(score.metric) is not None:
            return label
        metrics = {metric for metric, _ in measured[entry.task]}
        filters = {chosen for metric, chosen in measured[entry.task] if metric == score.metric}
        parts = [label]
        if len(metrics) > 1 or score.metric not in PRIMARY:
            parts.append(score.metric)
        if len(filters) > 1:
            parts.append(f"({score.chosen})")
        if not score.higher:
            parts.append("(lower is better)")
        return " ".join(parts)

    return heading


def _rows(
    block: Sequence[Entry],
    columns: Sequence[Column],
    heading: Heading,
    more_cells: Callable[[Sequence[Entry]], list[Cell]] = lambda line: [],
    length_of_row: Callable[[Entry], int | None] = lambda entry: entry.score.context_length,
) -> list[Row]:
    """A row for each length, ascending, and method; averages are ranked among those of one length.

    Under each heading the last entry of a row counts.
    """
    rows = []
    ordered = sorted(block, key=lambda entry: length_of_row(entry) or -1)
    for length, of_length in grouped(ordered, length_of_row).items():
        lines = grouped(of_length, lambda entry: entry.label)
        by_heading = [{heading(entry): entry for entry in line} for line in lines.values()]
        six = [[under.get(title) for title in CLOSED.values()] for under in by_heading]
        averages = ranked([average_cell(entries) for entries in six])
        for (label, line), under, average in zip(lines.items(), by_heading, averages, strict=True):
            cells = [
                average if column.kind == "average" else number_cell(under.get(column.label))
                for column in columns[2:]
            ]
            stopped = all(entry.score.status != "done" for entry in line)
            rows.append(
                Row(
                    (Cell(label), Cell(length_label(length)), *cells, *more_cells(line)),
                    "stopped" if stopped else "ours",
                    label,
                    length,
                    line[0].score.partial,
                    line[0].score.sample,
                )
            )
    return rows


def _information(block: Sequence[Entry], columns: Sequence[Column], width: int) -> list[Row]:
    """Rows below a block, with so many cells left empty: questions and documents, and chance."""
    by_task = grouped(block, lambda entry: entry.task)
    rows = []
    for label, cell_of in (("questions/documents", counts_cell), ("chance", chance_cell)):
        cells = [
            cell_of(by_task.get(column.task, ())) if column.kind == "task" else Cell()
            for column in columns[1:]
        ]
        if any(cell.text for cell in cells):
            rows.append(Row((Cell(label), *cells, *[Cell()] * width), "info"))
    return rows
