"""Score or perplexity against context length, with 95% bands."""

import math
from collections.abc import Sequence
from typing import Any

from leval_leaderboard.figures.style import (
    Looks,
    legend,
    literal,
    mark_level,
    new_figure,
    sign_entries,
)
from leval_leaderboard.tables.analysis import grouped
from leval_leaderboard.tables.cells import chance_of
from leval_leaderboard.tables.entries import Entry
from leval_leaderboard.tables.names import length_label, task_label


def length_figure(entries: Sequence[Entry], looks: Looks) -> Any:
    """Curves of finished entries of one block, task and family of metrics, as a `Figure`."""
    score, block = entries[0].score, entries[0].block
    figure, (axes,) = new_figure(7.2, 4.2)

    def shown(numbers: Sequence[float | None]) -> list[float]:
        return [math.nan if number is None else score.percent * number for number in numbers]

    for method, curve in sorted(grouped(entries, lambda entry: entry.label).items()):
        curve.sort(key=lambda entry: entry.length or 0)
        lengths = [entry.length for entry in curve]
        look = {**looks[method], "label": literal(method), "markersize": 5, "linewidth": 1.6}
        axes.plot(lengths, shown([entry.score.value for entry in curve]), **look)
        low, high = (shown([getattr(entry, end) for entry in curve]) for end in ("low", "high"))
        if any(map(math.isfinite, low)):
            colour = looks[method]["color"]
            axes.fill_between(lengths, low, high, color=colour, alpha=0.08, linewidth=0)
    axes.set_xscale("log", base=2)
    ticks = sorted({entry.length for entry in entries if entry.length})
    axes.set_xticks(ticks, [length_label(length) for length in ticks])
    axes.minorticks_off()
    axes.set_xlabel("Context length (tokens)")
    unit = ", %" if score.percent == 100 else ", lower is better" * (not score.higher)
    axes.set_ylabel(score.family.replace("_", " ") + unit)
    if (chance := chance_of(entries)) is not None:
        mark_level(axes, 100 * chance, "chance", x=1, color="#888888")
    axes.set_title(literal(f"{task_label(score.task)} by context length"), loc="left")
    legend(figure, [axes], "right upper")
    bands = any(entry.low is not None for entry in entries)
    sign_entries(figure, block + " · bands: 95% intervals, by document" * bands, entries)
    return figure
