"""Scores by context length, and differences to the baseline."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from leval_harness.analysis import Entry
from leval_harness.analysis.entries import grouped
from leval_harness.analysis.labels import length_label, task_label
from leval_harness.old_figures.style import DOTTED, ON_LEVEL, Looks, Picture, literal
from leval_harness.old_tables.scores import chance_of
from leval_tasks.statistics.paired import SIGNIFICANT

Interval = tuple[float | None, float | None, float | None]
"""A value and the ends of its interval."""


def length_figure(entries: Sequence[Entry], looks: Looks) -> Any:
    """Curves of finished entries of one block, task and family of metrics, as a `Figure`.

    Where methods were compared with a baseline, a second panel shows their differences: there
    curves that lie on each other can be told apart.
    """
    score, block = entries[0].score, entries[0].block
    compared = any(entry.difference for entry in entries)
    picture = Picture(7.2, 6.6 if compared else 4.2, rows=2 if compared else 1)
    axes, *below = picture.grid
    for method, curve in sorted(grouped(entries, lambda entry: entry.label).items()):
        curve.sort(key=lambda entry: entry.length or 0)
        look = {**looks[method], "markersize": 5, "linewidth": 1.6}
        values = [(e.length, (e.score.value, e.low, e.high)) for e in curve]
        _draw_curve(axes, values, score.percent, look)
        found = [(e.length, d) for e in curve if (d := e.difference)]
        differences = [(length, (d.difference, d.low, d.high)) for length, d in found]
        for lower in below if found else ():
            _draw_curve(lower, differences, score.percent, look)
    _context_axis([axes, *below], sorted({entry.length for entry in entries if entry.length}))
    unit = ", %" if score.percent == 100 else ", lower is better" * (not score.higher)
    axes.set_ylabel(score.family.replace("_", " ") + unit)
    for lower in below:
        lower.axhline(0, color="black", linewidth=1)
        nats = ", NLL (nats/token)" if score.meaning.kind == "loss" else ""
        unit = ", points" if score.percent == 100 else nats
        lower.set_ylabel("difference to the baseline" + unit)
    if (chance := chance_of(entries)) is not None:
        axes.axhline(100 * chance, color="#888888", **DOTTED)
        axes.annotate("chance", (1, 100 * chance), ha="right", **ON_LEVEL)
    axes.set_title(literal(f"{task_label(score.task)} by context length"), loc="left")
    picture.legend([axes], "right upper")
    bands = any(entry.low is not None for entry in entries)
    picture.sign_entries(block + " · bands: 95% intervals, by document" * bands, entries)
    return picture.figure


def _context_axis(grid: Sequence[Any], lengths: Sequence[int]) -> None:
    """The same lengths along each of some axes, named below the last."""
    for axes in grid:
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [length_label(length) for length in lengths])
        axes.minorticks_off()
    grid[-1].set_xlabel("Context length (tokens)")


def _draw_curve(
    axes: Any, curve: Sequence[tuple[int | None, Interval]], times: float, look: Mapping[str, Any]
) -> None:
    """A curve of values by length with its band."""
    lengths, intervals = zip(*curve, strict=True)
    middle, low, high = (
        [math.nan if each is None else times * each for each in part]
        for part in zip(*intervals, strict=True)
    )
    axes.plot(lengths, middle, **look)
    if any(map(math.isfinite, low)):
        axes.fill_between(lengths, low, high, color=look["color"], alpha=0.08, linewidth=0)


def difference_figure(entries: Sequence[Entry], baseline: str, looks: Looks) -> Any:
    """Forest plot of differences to a method in points, with intervals, as a `Figure`.

    The entries are of one block and context length and have a difference. The marker is filled if
    the difference is significant.
    """
    tasks = list(dict.fromkeys(entry.task for entry in entries))
    methods = sorted({entry.label for entry in entries})
    picture = Picture(6.8, 1.3 + 0.32 * (len(methods) + 0.8) * len(tasks))
    (axes,) = picture.grid
    first_of_place = {(entry.label, entry.task): entry for entry in reversed(entries)}
    offsets = np.linspace(-0.32, 0.32, len(methods)) if len(methods) > 1 else np.zeros(1)
    for method, offset in zip(methods, offsets, strict=True):
        for at, task in enumerate(tasks):
            if entry := first_of_place.get((method, task)):
                _draw_difference(axes, entry, at + offset, looks[method])
    axes.axvline(0, color="black", linewidth=1)
    axes.set_yticks(range(len(tasks)), [literal(task_label(task)) for task in tasks])
    axes.set_ylim(len(tasks) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    title = f"Difference to {literal(baseline)}"
    axes.set_xlabel(f"{title}, points")
    axes.set_title(f"{title} at {length_label(entries[0].score.context_length)}", loc="left")
    picture.legend([axes], "upper right", min(4, len(methods)))
    note = "filled: significant after Holm; lines: intervals at the corrected level"
    picture.sign_entries(f"{entries[0].block} · {note}", entries)
    return picture.figure


def _draw_difference(axes: Any, entry: Entry, height: float, look: Mapping[str, Any]) -> None:
    difference = entry.difference
    assert difference is not None
    if difference.low is not None and difference.high is not None:
        ends = [100 * difference.low, 100 * difference.high]
        axes.plot(ends, [height] * 2, color=look["color"], linewidth=1.5)
    fill = look["color"] if difference.mark == SIGNIFICANT else "white"
    style = {**look, "linestyle": "none", "markerfacecolor": fill}
    axes.plot([100 * difference.difference], [height], **style)
