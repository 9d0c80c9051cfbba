"""Score or perplexity against context length, with 95% bands."""

import math
from collections.abc import Sequence
from typing import Any

from leval_leaderboard.figures.style import Look, Looks, legend, literal, new_figure, sign_entries
from leval_leaderboard.tables.analysis import grouped
from leval_leaderboard.tables.entries import Entry
from leval_leaderboard.tables.names import length_label, task_label


def length_figure(entries: Sequence[Entry], looks: Looks) -> Any:
    """Curves of one task in one block.

    Args:
        entries: finished ones of one block, task and family of metrics, each with a length.
        looks: from `method_looks`.

    Returns:
        A matplotlib `Figure`.
    """
    score = entries[0].score
    figure, (axes,) = new_figure(7.2, 4.2)
    for method, curve in sorted(grouped(entries, lambda entry: entry.label).items()):
        curve.sort(key=lambda entry: entry.length or 0)
        _draw(axes, curve, looks[method])
    axes.set_xscale("log", base=2)
    lengths = sorted({entry.length for entry in entries if entry.length})
    axes.set_xticks(lengths, [length_label(length) for length in lengths])
    axes.minorticks_off()
    axes.set_xlabel("Context length (tokens)")
    name = score.family.replace("_", " ")
    axes.set_ylabel(f"{name}, %" if score.percent == 100 else f"{name}, lower is better")
    chance = next((e.score.chance for e in entries if e.score.chance is not None), None)
    if chance is not None:
        axes.axhline(100 * chance, color="#888888", linewidth=0.9, linestyle=":")
        axes.annotate(
            "chance",
            (1, 100 * chance),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=7,
            color="#666666",
        )
    axes.set_title(literal(f"{task_label(score.task)} by context length"), loc="left")
    legend(figure, [axes], "right upper")
    bands = any(entry.low is not None for entry in entries)
    note = " · bands: 95% intervals, by document" if bands else ""
    sign_entries(figure, note, entries)
    return figure


def _draw(axes: Any, curve: Sequence[Entry], look: Look) -> None:
    """One method's line and band."""

    def shown(number: float | None) -> float:
        return math.nan if number is None else curve[0].score.percent * number

    lengths = [entry.length for entry in curve]
    axes.plot(
        lengths,
        [shown(entry.score.value) for entry in curve],
        color=look.colour,
        marker=look.marker,
        linestyle=look.line,
        label=literal(curve[0].label),
        markersize=5,
        linewidth=1.6,
    )
    low, high = [shown(entry.low) for entry in curve], [shown(entry.high) for entry in curve]
    if any(map(math.isfinite, low)):
        axes.fill_between(lengths, low, high, color=look.colour, alpha=0.08, linewidth=0)
