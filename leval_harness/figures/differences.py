"""Each method's difference to the baseline, task by task: a forest plot."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from leval_harness.analysis.entries import SIGNIFICANT, Entry
from leval_harness.analysis.task_titles import length_label, task_label
from leval_harness.figures.style import Looks, legend, literal, new_figure, sign_entries


def difference_figure(entries: Sequence[Entry], baseline: str, looks: Looks) -> Any:
    """Differences to a method in points of percent, with their intervals, as a `Figure`.

    The entries are of one block and context length and have a difference. A significant one is a
    filled marker, an open one otherwise.
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
    title = f"Difference to {literal(baseline)}"
    axes.set_xlabel(f"{title}, points")
    axes.set_title(f"{title} at {length_label(entries[0].score.context_length)}", loc="left")
    legend(figure, [axes], "upper right", min(4, len(methods)))
    note = "filled: significant after Holm; lines: intervals at the corrected level"
    sign_entries(figure, f"{entries[0].block} · {note}", entries)
    return figure


def _draw(axes: Any, entry: Entry, height: float, look: Mapping[str, Any]) -> None:
    """One difference and its interval."""
    difference = entry.difference
    assert difference is not None
    if difference.low is not None and difference.high is not None:
        ends = [100 * difference.low, 100 * difference.high]
        axes.plot(ends, [height] * 2, color=look["color"], linewidth=1.5)
    fill = look["color"] if difference.mark == SIGNIFICANT else "white"
    style = {**look, "linestyle": "none", "markerfacecolor": fill, "label": literal(entry.label)}
    axes.plot([100 * difference.difference], [height], **style)
