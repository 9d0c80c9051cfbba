"""Forest plot: each method's difference to the baseline, task by task."""

from typing import Any

import numpy as np

from leval_leaderboard.figures.style import Look, literal, new_figure, sign
from leval_leaderboard.tables.names import length_label, task_label


def forest_figure(rows: Any, baseline: str, looks: dict[str, Look]) -> Any:
    """Differences with their intervals, in points of percent.

    Args:
        rows: analysed score rows of one block and context length that have a `difference`.
        baseline: name of the method that 0 stands for.
        looks: from `method_colours`.

    Returns:
        A matplotlib `Figure`; the significance mark is a filled marker, an open one otherwise.
    """
    tasks = list(dict.fromkeys(rows["task"]))
    methods = sorted(set(rows["label"]))
    figure, axes = new_figure(6.8, 1.3 + 0.32 * (len(methods) + 0.8) * len(tasks))
    offsets = np.linspace(-0.32, 0.32, len(methods)) if len(methods) > 1 else np.zeros(1)
    for method, offset in zip(methods, offsets, strict=True):
        look = looks[method]
        for at, task in enumerate(tasks):
            own = rows[(rows["label"] == method) & (rows["task"] == task)]
            if not len(own):
                continue
            row = own.iloc[0]
            value, low, high = (
                100 * float(row[n]) for n in ("difference", "diff_low", "diff_high")
            )
            if np.isfinite([low, high]).all():
                axes.plot([low, high], [at + offset] * 2, color=look.colour, linewidth=1.5)
            axes.plot(
                [value], [at + offset], color=look.colour, marker=look.marker, linestyle="none",
                markerfacecolor=look.colour if row["mark"] == "*" else "white",
                label=literal(method) if at == 0 else "_nolegend_",
            )  # fmt: skip
    axes.axvline(0, color="black", linewidth=1)
    axes.set_yticks(range(len(tasks)), [literal(task_label(str(task))) for task in tasks])
    axes.set_ylim(len(tasks) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"Difference to {literal(baseline)}, points")
    length = length_label(float(rows["context_length"].iloc[0]))
    axes.set_title(f"Difference to {literal(baseline)} at {length}", loc="left")
    figure.legend(fontsize=8, frameon=False, loc="outside upper right", ncols=min(4, len(methods)))
    sources = " ".join(sorted({s for s in rows["source"].dropna() if s}))
    note = "filled: significant after Holm; lines: intervals at the corrected level"
    sign(figure, f"{rows['block'].iloc[0]} · {note}", sources, str(rows["command"].iloc[0]))
    return figure
