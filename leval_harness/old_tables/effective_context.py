"""Tables of how far a model reads: effective context, retrieval, key tokens, paired differences."""

import math
from collections.abc import Sequence

from leval_harness.analysis.differences import PairedDifferences, PairedRow
from leval_harness.analysis.effective_context import EffectiveLine
from leval_harness.analysis.effective_sentences import length_text, like_text, verdicts
from leval_harness.analysis.entries import grouped
from leval_harness.analysis.key_tokens import GAP, MOST, KeyLine
from leval_harness.analysis.labels import length_label
from leval_harness.analysis.retrieval import Retrieval, retrieval_text
from leval_harness.old_tables.model import (
    METHOD,
    NOTHING,
    Block,
    Cell,
    Column,
    Row,
    Table,
    blocks_by_method,
    number_cell,
    text_columns,
)
from leval_harness.old_tables.notes import run_provenance
from leval_tasks.statistics.effective_context import FEWEST_TEXTS, Bin
from leval_tasks.statistics.retrieval import DROP, THRESHOLD

TEXT_HEADS = (
    "No degradation up to",
    "Benefits up to",
    "Texts like these: no degradation",
    "Texts like these: benefits",
)
NUMBER_HEADS = (
    "Breaks near", "Texts that agree", "Gain, nats", "Tokens better", "Claimed context",
)  # fmt: skip
RETRIEVES = (
    f"RULER's tasks together: up to which length the score is at least {THRESHOLD:.1%}, and up to "
    f"which it is less than {DROP:.0%} below that at the shortest length. At least: shown up to "
    "there, and beyond it was not asked or the questions cannot tell"
)
DIFFERENCE_HEADS = ("Compared", "Text", "Tokens", "Documents", "Baseline", "Method", "Difference",
                    "95% low", "95% high", "p")  # fmt: skip
DIFFERENCES = (
    "Tokens: positions of the windows; A to B: only the positions between two lengths",
    "Baseline, Method: NLL, the mean negative log-likelihood (nats/token); Difference: method "
    "minus baseline on the same tokens, negative is better",
    "95% low, high: interval clustered by document (CR2, Student's t), none below three documents; "
    "p: sign flips over documents; neither is corrected for the number of rows",
    "all: the documents of every text together, weighted by their tokens",
)


def effective_tables(lines: Sequence[EffectiveLine], gaps: Sequence[str]) -> list[Table]:
    """The verdicts, gains over short windows by position, and gains over the baseline.

    Args:
        lines: from `effective_lines`.
        gaps: notes of what has no line.
    """
    if not lines and not gaps:
        return []
    columns = (METHOD, *text_columns((*TEXT_HEADS, *NUMBER_HEADS), len(TEXT_HEADS)))
    notes = (
        "Up to a position: shown in every bin of positions before it, for these texts, with blocks "
        "of 512 tokens as units; between two: shown up to the first, refused by the second; below: "
        "refused. Gain: mean over all positions, not clipped. Tokens better: share whose loss is "
        "lower in full context",
        f"Texts like these: with texts as units, from {FEWEST_TEXTS} texts on",
        *gaps,
    )
    blocks = blocks_by_method(lines, _verdicts)
    sentences = tuple(verdicts(lines))
    tables = [Table("Effective context length", columns, blocks, notes, sentences)]
    gains = "NLL gain from full context by position (nats/token), clipped to ±1"
    tables += _by_position(gains, [(line, line.these.bins, ()) for line in lines])
    over = "NLL gain over the {} by position (nats/token), on the same tokens"
    against = [(e, e.against.bins, e.against.verdicts) for e in lines if e.against]
    tables += _by_position(over.format("baseline"), against)
    resonance = [(e, e.resonance.bins, e.resonance.verdicts) for e in lines if e.resonance]
    tables += _by_position(over.format("same method without Resonance"), resonance)
    return tables


def key_table(lines: Sequence[KeyLine], reference: str) -> Table:
    """Losses on the key tokens of a reference model; `lines` are from `key_lines`."""

    def cells(part: Sequence[KeyLine]) -> list[Cell]:
        (line,) = part
        losses = (number_cell(loss, ".3f") for loss in (line.loss, math.exp(line.loss)))
        return [*losses, *(number_cell(count, ",d") for count in (line.tokens, line.texts))]

    heads = ("NLL (nats/token)", "LongPPL", "Key tokens", "Texts")
    notes = (
        f"Key tokens of {reference} under its baseline: more than {GAP:g} nats better after the "
        f"whole text before them than after a short window, and below {MOST:g} nats then. That "
        "read has no row: its own losses chose the tokens",
        *([] if lines else ["None: no other run kept the losses of the same tokens"]),
    )
    columns = (METHOD, *map(Column, heads))
    return Table("Key tokens", columns, blocks_by_method(lines, cells), notes)


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


def difference_table(found: PairedDifferences, missing: Sequence[str]) -> Table:
    """Paired differences of perplexity; the arguments are what `paired_differences` returns."""
    blocks = tuple(
        Block(name, tuple(map(_difference, rows)))
        for name, rows in grouped(found.rows, lambda row: row.block).items()
    )
    provenance = run_provenance(found.runs, f"{found.documents} documents")
    left_out = (f"Left out: {why}" for why in missing)
    notes = (*DIFFERENCES, *found.left_out, *provenance, *left_out)
    title = "NLL (nats/token) on the same documents: paired differences"
    return Table(title, text_columns(DIFFERENCE_HEADS, 3), blocks, notes)


def _difference(row: PairedRow) -> Row:
    """A p needs three documents, as an interval does."""
    found = row.difference
    cells = [Cell(" − ".join(row.pair)), Cell(row.text), Cell(row.length)]
    cells += [number_cell(row.documents, "d")]
    cells += [number_cell(mean, ".4f") for mean in (row.base_mean, row.mean)]
    cells += [number_cell(each, "+.4f") for each in (found.difference, found.low, found.high)]
    cells += [number_cell(found.p, ".2g") if row.documents >= 3 else NOTHING]
    return Row(tuple(cells))


def _verdicts(part: Sequence[EffectiveLine]) -> list[Cell]:
    (line,) = part
    (agree, texts), like = line.agree, line.like
    return [
        Cell(length_text(line.these.no_degradation)),
        Cell(length_text(line.these.benefits)),
        Cell(like_text(line, like.no_degradation if like else None)),
        Cell(like_text(line, like.benefits if like else None)),
        number_cell(line.break_at, ",d"),
        Cell(f"{agree} of {texts}"),
        number_cell(line.raw, "+.3f"),
        number_cell(line.better, ".1%"),
        Cell(length_label(line.claimed), line.claimed),
    ]


def _by_position(
    title: str, rows: Sequence[tuple[EffectiveLine, Sequence[Bin], Sequence[str]]]
) -> list[Table]:
    """A table with a column for each bin; none without rows of lines, bins and their verdicts."""
    places = sorted({(each.start, each.end) for _, bins, _ in rows for each in bins})
    if not places:
        return []
    of_line = {id(line): (bins, found) for line, bins, found in rows}

    def cells(part: Sequence[EffectiveLine]) -> list[Cell]:
        bins, found = of_line[id(part[0])]
        at = {(each.start, each.end): each for each in bins}
        marked = {(b.start, b.end) for b, mark in zip(bins, found, strict=False) if mark}
        return [_gain(at.get(place), "*" * (place in marked)) for place in places]

    heads = [Column(f"{start:,}–{end:,}") for start, end in places]
    notes = ["In brackets: the gains at which the one-sided tests of a bin begin to decide"]
    if any(any(found) for _, _, found in rows):
        notes.append("*: better or worse than that, at 5% over all positions together")
    blocks = blocks_by_method([line for line, _, _ in rows], cells)
    return [Table(title, (METHOD, *heads), blocks, tuple(notes))]


def _gain(found: Bin | None, mark: str) -> Cell:
    if found is None:
        return NOTHING
    text = f"{found.gain:+.3f}{mark}"
    if found.low is not None and found.high is not None:
        text += f" ({found.low:+.3f} to {found.high:+.3f})"
    return Cell(text, found.gain)
