"""Each method's difference to the baseline, task by task: a forest plot."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from leval_leaderboard.figures.style import Looks, legend, literal, new_figure, sign_entries
from leval_leaderboard.tables.entries import SIGNIFICANT, Entry
from leval_leaderboard.tables.names import length_label, task_label


def difference_figure(entries: Sequence[Entry], baseline: str, looks: Looks) -> Any:
    """Differences with their intervals, in points of percent.

    Args:
        entries: scores of one block and context length that have a difference.
        baseline: name of the method that 0 stands for.
        looks: from `method_looks`.

    Returns:
        A matplotlib `Figure`; a significant difference is a filled marker, an open one otherwise.
    """
    tasks = list(dict.fromkeys(entry.task for entry in entries))
    methods = sorted({entry.label for entry in entries})
    figure, (axes,) = new_figure(6.8, 1.3 + 0.32 * (len(methods) + 0.8) * len(tasks))
    first_of_place = {(entry.label, entry.task): entry for entry in reversed(entries)}
    offsets = np.linspace(-0.32, 0.32, len(methods)) if len(methods) > 1 else np.zeros(1)
    for method, offset in zip(methods, offsets, strict=True):
        for at, task in enumerate(tasks):
            if entry := first_of_place.get((method, task)):
                _draw(axes, entry, at + offset, looks[method])
    axes.axvline(0, color="black", linewidth=1)
    axes.set_yticks(range(len(tasks)), [literal(task_label(task)) for task in tasks])
    axes.set_ylim(len(tasks) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"Difference to {literal(baseline)}, points")
    length = length_label(entries[0].run.context_length)
    axes.set_title(f"Difference to {literal(baseline)} at {length}", loc="left")
    legend(figure, [axes], "upper right", min(4, len(methods)))
    note = "filled: significant after Holm; lines: intervals at the corrected level"
    sign_entries(figure, f"{entries[0].block} · {note}", entries)
    return figure


def _draw(axes: Any, entry: Entry, height: float, look: Mapping[str, Any]) -> None:
    """One difference and its interval."""
    found = entry.difference
    assert found is not None
    if found.low is not None and found.high is not None:
        ends = [100 * found.low, 100 * found.high]
        axes.plot(ends, [height] * 2, color=look["color"], linewidth=1.5)
    fill = look["color"] if found.mark == SIGNIFICANT else "white"
    style = {**look, "linestyle": "none", "markerfacecolor": fill, "label": literal(entry.label)}
    axes.plot([100 * found.difference], [height], **style)
