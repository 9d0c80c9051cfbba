"""The picture of retrieval: accuracy by depth of the needle and by length, a field per method."""

from typing import TYPE_CHECKING, Any

import pandas as pd

from leval_harness.report.drawing import PAPER, add_source_note, literal_text, new_figure
from leval_harness.report.labels import length_label, task_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = "cividis"
"""A scale that is the same to readers with and without colour blindness."""

LIGHT_TEXT = "#fefefe"
DARK_TEXT = "#101010"
"""Numbers in the cells; not those of other text, since cells are the same on a dark ground."""

PER_ROW = 3
"""Methods beside each other."""


def heat_map_figure(task: str, rows: pd.DataFrame) -> "Figure":
    """Draw the accuracy of each method at each depth and length, with its number in the cell.

    Args:
        task: name of the task.
        rows: of `leval_harness.report.retrieval.needle_grids`.
    """
    labels = list(rows["label"].unique())
    columns = min(PER_ROW, len(labels))
    lines = -(-len(labels) // columns)
    depths = sorted(rows["depth"].unique())
    lengths = sorted(rows["length"].astype(int).unique())
    width = 1.2 + columns * max(2.0, 0.62 * len(lengths))
    height = 0.9 + lines * (0.75 + 0.34 * len(depths))
    figure, grid = new_figure(width, height, columns, lines, sharex=True, sharey=True)
    for axes, label in zip(grid, labels, strict=False):
        table = rows[rows["label"] == label].pivot_table(
            index="depth", columns="length", values="value", aggfunc="last"
        )
        _draw_cells(axes, table.reindex(index=depths, columns=lengths))
        axes.set_title(literal_text(label, 30))
    for axes in grid[len(labels) :]:
        axes.set_visible(False)
    for at, axes in enumerate(grid):
        axes.grid(visible=False)
        axes.set_xticks(range(len(lengths)), [length_label(length) for length in lengths])
        axes.set_yticks(range(len(depths)), [f"{depth:g}" for depth in depths])
        if at % columns == 0:
            axes.set_ylabel("Depth (%)")
        if at + columns >= len(labels):
            axes.set_xlabel("Context length (tokens)")
            axes.tick_params(labelbottom=True)
    questions = sorted(rows["n"].dropna().astype(int).unique())
    counts = " to ".join(dict.fromkeys([f"{questions[0]}", f"{questions[-1]}"]))
    add_source_note(
        figure,
        f"{rows['block'].iloc[0]} · {task_label(task)}: needles found, %; {counts} samples per cell",
    )
    return figure


def _draw_cells(axes: Any, table: pd.DataFrame) -> None:
    """Draw a field of cells with their numbers; what was not measured stays empty."""
    axes.pcolormesh(
        range(table.shape[1]), range(table.shape[0]), table.to_numpy(dtype=float), cmap=COLORS,
        vmin=0, vmax=1, shading="nearest", edgecolors=PAPER, linewidth=1,
    )  # fmt: skip
    axes.set_ylim(table.shape[0] - 0.5, -0.5)  # the beginning of the document is at the top
    for line, (_, values) in enumerate(table.iterrows()):
        for column, value in enumerate(values):
            if pd.notna(value):
                color = DARK_TEXT if value > 0.55 else LIGHT_TEXT
                axes.text(
                    column, line, f"{100 * value:.0f}", ha="center", va="center", color=color,
                    fontsize=8,
                )  # fmt: skip


def heat_map_alt_text(task: str, rows: pd.DataFrame) -> str:
    """Return the result that a heat map shows, for those who cannot see it."""
    parts = []
    for label, part in rows.groupby("label", sort=False):
        worst = part.loc[part["value"].idxmin()]
        parts.append(
            f"{label} finds {100 * part['value'].mean():.0f}% on average, at least "
            f"{100 * worst['value']:.0f}% (depth {worst['depth']:g}% of "
            f"{length_label(worst['length'])})"
        )
    return f"{task_label(task)}, accuracy by depth and length: {'; '.join(parts)}."
