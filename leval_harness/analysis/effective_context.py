"""How far does a text help? A line for each model and method.

The full read of a method is compared with short windows token by token: those of the
checkpoint as it is in a sweep, the method's own in a single run.
`leval_tasks.statistics.effective_context` defines the estimator.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from leval_harness.analysis.entries import FAMILY, LEVEL, Analysis, Entry, grouped
from leval_harness.layout import SHORT_WINDOWS
from leval_harness.old_results.settings import METHOD
from leval_harness.old_results.token_losses import ReadText, read_texts
from leval_tasks.effective_context.reads import FULL, SHORT, TRAINED
from leval_tasks.statistics.clustered import Floats
from leval_tasks.statistics.effective_context import (
    BINS,
    BLOCK,
    FEWEST_TEXTS,
    Bin,
    Blocks,
    EffectiveContext,
    better_or_worse,
    bin_edges,
    block_sums,
    break_position,
    clipped_gain,
    effective_context,
    texts_that_agree,
)
from leval_tasks.statistics.skewed_t import MARGIN


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveLine:
    """What some texts say of one model under one method.

    Attributes:
        block: title of the rows that it may be compared with.
        model, method: their names.
        claimed: tokens that the config claims under the method.
        shared: whether the short windows are those of the checkpoint as it is, which its methods
            share; else they are the method's own.
        window: tokens of a short window.
        trained: tokens of the second window, 0 where there is none.
        texts, tokens: read past the first window.
        margin: nats a token.
        these: for these texts, blocks as units; past the end of the second window, where there is
            one, `no_degradation` is that against both windows.
        like: for texts like these; None below `FEWEST_TEXTS`.
        agree: texts that show no degradation by their own mean, over the positions shown (over all
            where none is), and all texts.
        break_at: position from which the model no longer gains; None where none was measured.
        raw: mean gain in nats without clipping.
        better: share of the tokens whose loss is lower in full context; None where the runs kept no
            losses of tokens.
        against: how it compares with the block's baseline; None for the baseline itself.
        resonance: how a Resonance method compares with the same one without; None for others, and
            where that one is the baseline.
    """

    block: str
    model: str
    method: str
    claimed: int | None
    shared: bool
    window: int
    trained: int
    texts: int
    tokens: int
    margin: float
    these: EffectiveContext
    like: EffectiveContext | None
    agree: tuple[int, int]
    break_at: int | None
    raw: float
    better: float | None
    against: "Against | None" = None
    resonance: "Against | None" = None


@dataclass(frozen=True, slots=True)
class Against:
    """A method and another one on the same tokens.

    Attributes:
        baseline: label of the other one.
        bins: the gain over it by position, nats a token, not clipped.
        verdicts: for each bin `better`, `worse` or empty: one-sided t tests with Hall's correction,
            5% over both sides and all bins together (Bonferroni), blocks as units.
    """

    baseline: str
    bins: tuple[Bin, ...]
    verdicts: tuple[str, ...]


Texts = Mapping[str, ReadText]
"""Those that one method read, by name."""

_Gains = tuple[int, Floats, Floats]
"""Gains of a text, and tokens, in blocks from a position on."""

_Pair = tuple[ReadText, ReadText]


@lru_cache(maxsize=2)
def effective_lines(
    analysis: Analysis,
) -> tuple[tuple[EffectiveLine, ...], tuple[str, ...]]:
    """A line for each model and method, and what was run and is in none of them, with the reason.

    The files of losses are read once for an analysis: tables, verdict, figures and page share it.
    """
    entries = [e for e in analysis.entries if e.family == FAMILY and e.score.finished]
    lines: list[EffectiveLine] = []
    gaps: list[str] = []
    for block, of_block in grouped(entries, lambda entry: entry.block).items():
        windows = [entry for entry in of_block if entry.run.method == SHORT_WINDOWS]
        full = [entry for entry in of_block if entry.run.method != SHORT_WINDOWS]
        by_label = grouped(full, lambda entry: entry.label)
        references = {
            checkpoint: read_texts(analysis.results, [entry.score for entry in part], gaps)
            for checkpoint, part in grouped(windows, lambda entry: entry.run.checkpoint).items()
        }
        texts = {
            label: read_texts(analysis.results, [entry.score for entry in part], gaps)
            for label, part in by_label.items()
        }
        named = [entry.run.margin for entry in full if entry.run.margin]
        smallest = analysis.margin or next(iter(named), MARGIN)
        baseline = analysis.baselines.get(block, "")
        plain = _plain({e: part[0].score.settings.get(METHOD) for e, part in by_label.items()})
        for label, part in by_label.items():
            against = baseline if baseline in texts and baseline != label else ""
            others = (against, "" if plain[label] == against else plain[label])
            reference = references.get(part[0].run.checkpoint, {})
            line = _line(part, texts, reference, others, smallest, gaps)
            lines += [line] if line else []
    return tuple(lines), tuple(gaps)


def _plain(ropes: Mapping[str, str | None]) -> dict[str, str]:
    """Label of each method -> that of the same one without Resonance; empty where there is none.

    `ropes` maps labels to RoPE settings (JSON).
    """
    settings: dict[str, dict[str, Any]] = {}
    for label, text in ropes.items():
        try:
            settings[label] = dict(json.loads(text or "{}"))
        except ValueError:  # a long text was shortened
            settings[label] = {}
    found = {}
    for label, own in settings.items():
        kind = str(own.get("rope_type", "")).removeprefix("resonance").removeprefix("_")
        wanted = {**own, "rope_type": kind or "default"}
        wanted.pop("wavelengths", None)
        same = (other for other, each in settings.items() if each == wanted)
        found[label] = next(same, "") if wanted != own else ""
    return found


def _line(
    entries: Sequence[Entry],
    texts: Mapping[str, Texts],
    reference: Texts,
    others: tuple[str, str],
    margin: float,
    gaps: list[str],
) -> EffectiveLine | None:
    """The line of one method; None where it gains over no windows.

    Args:
        entries: its scores.
        texts: of every method of the block, by label.
        reference: short windows of its checkpoint as it is; empty where there are none.
        others: label of the baseline and of the same method without Resonance; empty for none.
        margin: nats a token.
        gaps: gets the texts that are left out.
    """
    label = entries[0].label
    differences = [_differences(texts[label], texts.get(other, {})) for other in others]
    pairs, short = _over_windows(label, texts[label], reference, gaps)
    if not pairs:
        return None
    longer = [gains for pair in pairs if (gains := _gains(*pair, TRAINED))]
    blocks, start = Blocks.joined(short), min(start for start, *_ in short)
    trained = min((start for start, *_ in longer), default=0)
    better = [
        text.losses[FULL] < other.losses[SHORT]
        for text, other in pairs
        if FULL in text.losses and SHORT in other.losses
    ]
    saved = [float(o.column("short").sum() - text.column("full").sum()) for text, o in pairs]
    longest, tokens = int(blocks.end.max()), int(blocks.tokens.sum())
    edges = bin_edges(start, longest, max(1, min(BINS, longest // (2 * BLOCK))))
    second = (trained, Blocks.joined(longer)) if longer else None
    judged = partial(effective_context, blocks, edges, margin=margin, longer=second)
    these = judged()
    looked_at = these.no_degradation
    if looked_at.shown == looked_at.start:  # where nothing is shown, over all positions
        looked_at = replace(looked_at, shown=looked_at.measured)
    bounds = [these.bins[0].start, *(each.end for each in these.bins)]
    against, resonance = (
        Against(other, *better_or_worse(Blocks.joined(found), bounds, LEVEL)) if found else None
        for other, found in zip(others, differences, strict=True)
    )
    return EffectiveLine(
        block=entries[0].block,
        model=entries[0].run.model,
        method=label,
        claimed=entries[0].score.claimed_length,
        shared=bool(reference),
        window=start,
        trained=trained,
        texts=len(pairs),
        tokens=tokens,
        margin=margin,
        these=these,
        like=judged(texts_as_units=True) if len(pairs) >= FEWEST_TEXTS else None,
        agree=texts_that_agree(blocks, looked_at, margin),
        break_at=break_position(blocks, margin),
        raw=sum(saved) / tokens,
        better=float(np.concatenate(better).mean()) if len(better) == len(pairs) else None,
        against=against,
        resonance=resonance,
    )


def _differences(texts: Texts, base: Texts) -> list[_Gains]:
    """Gains over another method's full reads of the same tokens."""
    gains = []
    for name, text in texts.items():
        other = base.get(name)
        if other is None or other.digest != text.digest:
            continue
        difference = other.column("full") - text.column("full")
        if not np.isnan(difference).any():
            gains.append((text.start, difference, text.column("tokens")))
    return gains


def _over_windows(
    label: str, texts: Texts, reference: Texts, gaps: list[str]
) -> tuple[list[_Pair], list[_Gains]]:
    """Full reads of texts with the reads that have their windows, and gains over the short ones.

    The windows are those of `reference`, or a method's own where there are none.
    """
    pairs, short = [], []
    for name, text in texts.items():
        other, why = reference.get(name) if reference else text, "are no short windows"
        if other is not None and other.digest == text.digest:
            if gains := _gains(text, other, SHORT):
                pairs.append((text, other))
                short.append(gains)
                continue
            why = "is no full read" if np.isnan(text.column("full")).all() else why
        gaps.append(f"Not counted: {label}: {name}, of which there {why}")
    return pairs, short


def _gains(text: ReadText, other: ReadText, read: str) -> _Gains | None:
    """Gains of a full read over windows of another read of the same text."""
    if FULL in text.losses and read in other.losses:
        gains = clipped_gain(other.losses[read], text.losses[FULL])
        known = np.flatnonzero(~np.isnan(gains))
        return (text.start + int(known[0]), *block_sums(gains[known[0] :])) if known.size else None
    if text is not other:
        return None
    sums = text.column("gain" if read == SHORT else "trained_gain")
    known = np.flatnonzero(~np.isnan(sums))
    if not known.size:
        return None
    first = int(known[0])
    return int(text.column("start")[first]), sums[first:], text.column("tokens")[first:]
