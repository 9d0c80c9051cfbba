"""Tables of paired differences of perplexity and reach."""

from dataclasses import replace

from leval_harness.analysis.differences import PairedDifferences, PairedRow
from leval_harness.analysis.entries import grouped
from leval_harness.tables.model import NOTHING, Block, Cell, Row, Table, number_cell, text_columns
from leval_harness.tables.notes import run_provenance

COLUMNS = ("Compared", "Text", "Tokens", "Documents", "Baseline", "Method", "Difference",
           "95% low", "95% high", "p")  # fmt: skip
NOTES = (
    "Baseline, Method: NLL, the mean negative log-likelihood (nats/token); Difference: method "
    "minus baseline on the same tokens, negative is better",
    "95% low, high: interval clustered by document (CR2, Student's t), none below three documents; "
    "p: sign flips over documents; neither is corrected for the number of rows",
    "all: the documents of every text together, weighted by their tokens",
)
SEEN = "Tokens: all that the model sees before the scored ones and with them; the scored ones are "
TITLES = {
    "perplexity": (
        "NLL (nats/token) on the same documents: paired differences",
        "Tokens: positions of the windows; A to B: only the positions between two lengths",
    ),
    "loss": (
        "Loss of the same tokens after more context: paired differences, nats a token",
        f"{SEEN}the same at every length. A text that either method did not read at each of its "
        "lengths counts at none",
    ),
    "key_loss": (
        "Loss on key tokens after more context: paired differences, nats a token",
        f"{SEEN}those that a reference model told (key_tokens)",
    ),
}
"""Title and first note of each kind of metric."""


def difference_tables(found: list[PairedDifferences], missing: list[str]) -> list[Table]:
    """A table for each kind of metric; the arguments are what `paired_differences` returns."""
    tables = [_table(each) for each in found]
    notes = (*tables[-1].notes, *(f"Left out: {why}" for why in missing))
    return [*tables[:-1], replace(tables[-1], notes=notes)]


def _table(found: PairedDifferences) -> Table:
    title, note = TITLES[found.kind]
    blocks = tuple(
        Block(name, tuple(map(_row, rows)))
        for name, rows in grouped(found.rows, lambda row: row.block).items()
    )
    provenance = run_provenance(found.runs, f"{found.documents} documents")
    notes = (note, *NOTES, *found.left_out, *provenance)
    return Table(title, text_columns(COLUMNS, 3), blocks, notes)


def _row(row: PairedRow) -> Row:
    """A p needs three documents, as an interval does."""
    found = row.difference
    cells = [Cell(" − ".join(row.pair)), Cell(row.text), Cell(row.length)]
    cells += [number_cell(row.documents, "d")]
    cells += [number_cell(mean, ".4f") for mean in (row.base_mean, row.mean)]
    cells += [number_cell(each, "+.4f") for each in (found.difference, found.low, found.high)]
    cells += [number_cell(found.p, ".2g") if row.documents >= 3 else NOTHING]
    return Row(tuple(cells))
