"""Score or perplexity against context length, with 95% bands."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from leval_harness.analysis.analyse import grouped
from leval_harness.analysis.entries import Entry
from leval_harness.analysis.task_titles import length_label, task_label
from leval_harness.figures.style import (
    Looks,
    legend,
    literal,
    mark_level,
    new_figure,
    sign_entries,
)
from leval_harness.results.metrics import is_of_nats
from leval_harness.tables.cells import chance_of


def length_figure(entries: Sequence[Entry], looks: Looks) -> Any:
    """Curves of finished entries of one block, task and family of metrics, as a `Figure`.

    Where methods were compared with a baseline their differences stand below: curves that lie on
    each other are told apart there.
    """
    score, block = entries[0].score, entries[0].block
    compared = any(entry.difference for entry in entries)
    figure, (axes, *below) = new_figure(7.2, 6.6 if compared else 4.2, rows=2 if compared else 1)
    for method, curve in sorted(grouped(entries, lambda entry: entry.label).items()):
        curve.sort(key=lambda entry: entry.length or 0)
        look = {**looks[method], "label": literal(method), "markersize": 5, "linewidth": 1.6}
        ends = [(entry.score.value, entry.low, entry.high) for entry in curve]
        draw_curve(axes, [entry.length for entry in curve], ends, score.percent, look)
        told = [(entry.length, each) for entry in curve if (each := entry.difference)]
        for lower in below if told else ():
            differences = [(each.difference, each.low, each.high) for _, each in told]
            draw_curve(lower, [length for length, _ in told], differences, score.percent, look)
    ticks = sorted({entry.length for entry in entries if entry.length})
    context_axis([axes, *below], ticks)
    unit = ", %" if score.percent == 100 else ", lower is better" * (not score.higher)
    axes.set_ylabel(score.family.replace("_", " ") + unit)
    for lower in below:
        lower.axhline(0, color="black", linewidth=1)
        unit = "points" if score.percent == 100 else "nats a token" * is_of_nats(score.metric)
        lower.set_ylabel("difference to the baseline" + (f", {unit}" if unit else ""))
    if (chance := chance_of(entries)) is not None:
        mark_level(axes, 100 * chance, "chance", x=1, color="#888888")
    axes.set_title(literal(f"{task_label(score.task)} by context length"), loc="left")
    legend(figure, [axes], "right upper")
    bands = any(entry.low is not None for entry in entries)
    sign_entries(figure, block + " · bands: 95% intervals, by document" * bands, entries)
    return figure


def context_axis(grid: Sequence[Any], lengths: Sequence[int]) -> None:
    """The same lengths along each of some axes, named below the last."""
    for axes in grid:
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [length_label(length) for length in lengths])
        axes.minorticks_off()
    grid[-1].set_xlabel("Context length (tokens)")


def draw_curve(
    axes: Any,
    lengths: Sequence[int | None],
    numbers: Sequence[tuple[float | None, float | None, float | None]],
    times: float,
    look: Mapping[str, Any],
) -> None:
    """A curve with its band; `numbers` are values and the ends of their intervals."""
    middle, low, high = (
        [math.nan if each is None else times * each for each in part]
        for part in zip(*numbers, strict=True)
    )
    axes.plot(lengths, middle, **look)
    if any(map(math.isfinite, low)):
        axes.fill_between(lengths, low, high, color=look["color"], alpha=0.08, linewidth=0)
