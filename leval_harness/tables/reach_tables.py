"""The tables that everything begins with: how far, and how methods differ on the way."""

from collections.abc import Sequence

from leval_harness.analysis.analyse import LEVEL, grouped
from leval_harness.analysis.reach import ReachLine, reach_text
from leval_harness.analysis.task_titles import length_label
from leval_harness.tables.model import Block, Cell, Column, Row, Table
from leval_tasks.statistics.paired import ASSUMED, Difference
from leval_tasks.statistics.reach import MARGIN, Reach
from leval_tasks.statistics.retrieval import DROP, THRESHOLD

NOTES = (
    "No loss: the largest context up to which no longer one made the same tokens of the same texts "
    f"worse; gain: up to which each longer one made them better. A difference below {MARGIN:g} "
    "nats a token is none. The ends of the 95% interval are lengths that were asked.",
    "At least: shown up to there, and beyond it was not asked or the texts cannot tell",
    "Config: tokens that the checkpoint's config claims under the method",
)
PROBES = (
    f"Retrieves: RULER's tasks together, up to which length the score is at least {THRESHOLD:.1%}, "
    f"and up to which it is less than {DROP:.0%} below that at the shortest length",
)


def reach_table(lines: Sequence[ReachLine], gaps: Sequence[str] = ()) -> Table | None:
    """The answer on top of everything: a row a model and method; None where nothing was asked.

    By loss and by retrieval, as far as there is something to say; `gaps` are notes of what there
    is not.
    """
    losses, probes = any(line.texts for line in lines), any(line.retrieval for line in lines)
    losses = losses or bool(gaps)
    heads = [*(_LOSS_HEADS if losses else ()), *(_PROBE_HEADS if probes else ())]
    if not heads:
        return None
    blocks = []
    for name, part in grouped(lines, lambda line: line.block).items():
        rows = []
        for line in part:
            cells = [
                *(_loss_cells(line) if losses else ()),
                *(_probe_cells(line) if probes else ()),
            ]
            rows.append(Row((Cell(line.method), *cells), "ours", line.method))
        blocks.append(Block(name, tuple(rows)))
    columns = (Column("Method", numeric=False, kind="name"), *heads)
    notes = (*(NOTES if losses else ()), *(PROBES if probes else ()), *gaps)
    return Table("How far does it really read?", columns, tuple(blocks), notes)


_LOSS_HEADS = (
    Column("Reads without loss", numeric=False),
    Column("95%", numeric=False),
    Column("Still gains up to", numeric=False),
    Column("Config"),
    Column("Texts"),
    Column("Tokens"),
)
_PROBE_HEADS = (
    Column(f"Retrieves {THRESHOLD:.1%}", numeric=False),
    Column("Retrieves as at the shortest", numeric=False),
    Column("Probes"),
)


def _loss_cells(line: ReachLine) -> list[Cell]:
    return [
        Cell(reach_text(line.no_loss)),
        Cell(_interval(line.no_loss)),
        Cell(reach_text(line.gain)),
        Cell(length_label(line.claimed), line.claimed),
        _count(line.texts),
        _count(line.tokens),
    ]


def _probe_cells(line: ReachLine) -> list[Cell]:
    found = line.retrieval
    if found is None:
        return [Cell("–")] * len(_PROBE_HEADS)
    return [Cell(reach_text(found.above)), Cell(reach_text(found.kept)), _count(found.probes)]


def _count(number: int) -> Cell:
    return Cell(f"{number:,}", number) if number else Cell("–")


def _interval(reach: Reach | None) -> str:
    if reach is None or reach.low == reach.high:
        return ""
    low = "?" if reach.low is None else length_label(reach.low)
    return f"{low} to {length_label(reach.high)}"


def against_table(lines: Sequence[ReachLine]) -> Table | None:
    """Differences to the baseline at each length, with their intervals; None without any."""
    compared = [line for line in lines if any(point.against for point in line.points)]
    if not compared:
        return None
    lengths = sorted({point.length for line in compared for point in line.points})
    blocks = []
    for name, part in grouped(compared, lambda line: line.block).items():
        rows = []
        for line in part:
            at = {point.length: point.against for point in line.points}
            cells = (Cell(line.method), *(_difference(at.get(length)) for length in lengths))
            rows.append(Row(cells, "ours", line.method))
        blocks.append(Block(name, tuple(rows)))
    heads = (Column(length_label(length)) for length in lengths)
    columns = (Column("Method", numeric=False, kind="name"), *heads)
    title = "Against the baseline, nats a token on the same tokens (95% interval)"
    told = [p.against for line in compared for p in line.points if p.against]
    few = any(each.beside_zero and each.smallest_p > LEVEL for each in told)
    notes = (
        "Negative is better; *: the interval, by text, tells the difference from zero",
        *([f"? in the tables below: {ASSUMED}"] if few else ()),
    )
    return Table(title, columns, tuple(blocks), notes)


def _difference(found: Difference | None) -> Cell:
    if found is None:
        return Cell("–")
    text = f"{found.difference:+.3f}"
    if found.low is None or found.high is None:
        return Cell(text, found.difference)
    told = "*" if found.beside_zero else ""
    return Cell(f"{text} ({found.low:+.3f} to {found.high:+.3f}){told}", found.difference)
