"""Tables of the effective context length: the verdicts, and gains by position."""

import math
from collections.abc import Callable, Iterable, Sequence

from leval_harness.analysis.effective_context import (
    EffectiveLine,
    length_text,
    like_text,
    verdicts,
)
from leval_harness.analysis.entries import grouped
from leval_harness.analysis.key_tokens import GAP, MOST, KeyLine
from leval_harness.analysis.labels import length_label
from leval_harness.tables.model import (
    METHOD,
    NOTHING,
    Block,
    Cell,
    Column,
    Row,
    Table,
    number_cell,
    text_columns,
)
from leval_tasks.statistics.effective_context import FEWEST_TEXTS, Bin

TEXT_HEADS = (
    "No degradation up to",
    "Benefits up to",
    "Texts like these: no degradation",
    "Texts like these: benefits",
)
NUMBER_HEADS = (
    "Breaks near", "Texts that agree", "Gain, nats", "Tokens better", "Claimed context",
)  # fmt: skip


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
    tables = [
        Table(
            "Effective context length",
            columns,
            _blocks(lines, _verdicts),
            notes,
            tuple(verdicts(lines)),
        )
    ]
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
    blocks = tuple(
        Block(
            title,
            tuple(
                Row((Cell(e.method), *(number_cell(*each) for each in _key_numbers(e))))
                for e in of_block
            ),
        )
        for title, of_block in grouped(lines, lambda line: line.block).items()
    )
    heads = ("NLL (nats/token)", "LongPPL", "Key tokens", "Texts")
    notes = (
        f"Key tokens of {reference} under its baseline: more than {GAP:g} nats better after the "
        f"whole text before them than after a short window, and below {MOST:g} nats then. That "
        "read has no row: its own losses chose the tokens",
        *([] if lines else ["None: no other run kept the losses of the same tokens"]),
    )
    return Table("Key tokens", (METHOD, *map(Column, heads)), blocks, notes)


def _key_numbers(line: KeyLine) -> list[tuple[float, str]]:
    return [
        (line.loss, ".3f"), (math.exp(line.loss), ".3f"), (line.tokens, ",d"), (line.texts, ",d"),
    ]  # fmt: skip


def _blocks(
    lines: Sequence[EffectiveLine], cells: Callable[[EffectiveLine], Iterable[Cell]]
) -> tuple[Block, ...]:
    return tuple(
        Block(
            title,
            tuple(Row((Cell(e.method), *cells(e)), "ours", e.method) for e in of_block),
        )
        for title, of_block in grouped(lines, lambda line: line.block).items()
    )


def _verdicts(line: EffectiveLine) -> list[Cell]:
    agree, texts = line.agree
    like = line.like
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

    def cells(line: EffectiveLine) -> list[Cell]:
        bins, found = of_line[id(line)]
        at = {(each.start, each.end): each for each in bins}
        marked = {(b.start, b.end) for b, mark in zip(bins, found, strict=False) if mark}
        return [_gain(at.get(place), "*" * (place in marked)) for place in places]

    heads = [Column(f"{start:,}–{end:,}") for start, end in places]
    notes = ["In brackets: the gains at which the one-sided tests of a bin begin to decide"]
    if any(any(found) for _, _, found in rows):
        notes.append("*: better or worse than that, at 5% over all positions together")
    blocks = _blocks([line for line, _, _ in rows], cells)
    return [Table(title, (METHOD, *heads), blocks, tuple(notes))]


def _gain(found: Bin | None, mark: str) -> Cell:
    if found is None:
        return NOTHING
    text = f"{found.gain:+.3f}{mark}"
    if found.low is not None and found.high is not None:
        text += f" ({found.low:+.3f} to {found.high:+.3f})"
    return Cell(text, found.gain)
