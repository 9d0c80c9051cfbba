"""The table of paired differences of perplexity."""

from collections.abc import Sequence

from leval_harness.analysis.differences import PairedDifferences, PairedRow
from leval_harness.analysis.entries import grouped
from leval_harness.tables.model import NOTHING, Block, Cell, Row, Table, number_cell, text_columns
from leval_harness.tables.notes import run_provenance

COLUMNS = ("Compared", "Text", "Tokens", "Documents", "Baseline", "Method", "Difference",
           "95% low", "95% high", "p")  # fmt: skip
TITLE = "NLL (nats/token) on the same documents: paired differences"
NOTES = (
    "Tokens: positions of the windows; A to B: only the positions between two lengths",
    "Baseline, Method: NLL, the mean negative log-likelihood (nats/token); Difference: method "
    "minus baseline on the same tokens, negative is better",
    "95% low, high: interval clustered by document (CR2, Student's t), none below three documents; "
    "p: sign flips over documents; neither is corrected for the number of rows",
    "all: the documents of every text together, weighted by their tokens",
)


def difference_table(found: PairedDifferences, missing: Sequence[str]) -> Table:
    """The table; the arguments are what `paired_differences` returns."""
    blocks = tuple(
        Block(name, tuple(map(_row, rows)))
        for name, rows in grouped(found.rows, lambda row: row.block).items()
    )
    provenance = run_provenance(found.runs, f"{found.documents} documents")
    left_out = (f"Left out: {why}" for why in missing)
    notes = (*NOTES, *found.left_out, *provenance, *left_out)
    return Table(TITLE, text_columns(COLUMNS, 3), blocks, notes)


def _row(row: PairedRow) -> Row:
    """A p needs three documents, as an interval does."""
    found = row.difference
    cells = [Cell(" − ".join(row.pair)), Cell(row.text), Cell(row.length)]
    cells += [number_cell(row.documents, "d")]
    cells += [number_cell(mean, ".4f") for mean in (row.base_mean, row.mean)]
    cells += [number_cell(each, "+.4f") for each in (found.difference, found.low, found.high)]
    cells += [number_cell(found.p, ".2g") if row.documents >= 3 else NOTHING]
    return Row(tuple(cells))
