"""The table of how far a model retrieves."""

from collections.abc import Sequence

from leval_harness.analysis.retrieval import Retrieval, retrieval_text
from leval_harness.old_tables.model import (
    METHOD,
    Cell,
    Table,
    blocks_by_method,
    number_cell,
    text_columns,
)
from leval_tasks.statistics.retrieval import DROP, THRESHOLD

RETRIEVES = (
    f"RULER's tasks together: up to which length the score is at least {THRESHOLD:.1%}, and up to "
    f"which it is less than {DROP:.0%} below that at the shortest length. At least: shown up to "
    "there, and beyond it was not asked or the questions cannot tell"
)


def retrieval_table(lines: Sequence[Retrieval]) -> Table:
    """How far each model retrieves under each method."""

    def cells(part: Sequence[Retrieval]) -> list[Cell]:
        (found,) = part
        texts = Cell(retrieval_text(found.above)), Cell(retrieval_text(found.kept))
        return [*texts, number_cell(found.probes or None, ",d")]

    heads = (f"Retrieves {THRESHOLD:.1%}", "Retrieves as at the shortest", "Probes")
    columns = (METHOD, *text_columns(heads, 2))
    blocks = blocks_by_method(lines, cells)
    return Table("How far does it retrieve?", columns, blocks, (RETRIEVES,))
