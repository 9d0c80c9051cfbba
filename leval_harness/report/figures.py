"""Figures from the compared frame, by matplotlib: SVG for the page, PNG and PDF for papers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from leval_harness.report.compare import SIGNIFICANT
from leval_harness.report.drawing import (
    DOTTED,
    EDGE,
    INK,
    ON_LEVEL,
    PAPER,
    MethodStyles,
    add_source_note,
    legend,
    literal_text,
    method_styles,
    new_figure,
    write_figure,
)
from leval_harness.report.effective_context import TASK, position_curves
from leval_harness.report.effective_figures import (
    difference_alt_text,
    difference_figure,
    increase_alt_text,
    increase_figure,
)
from leval_harness.report.effective_summary import method_pairs, summary
from leval_harness.report.heat_map import heat_map_alt_text, heat_map_figure
from leval_harness.report.labels import length_label, task_label, task_titles
from leval_harness.report.retrieval import is_at_length, is_needle_grid, needle_grids
from leval_harness.report.selection import is_higher_better, main_numbers
from leval_harness.results.layout import REFERENCE
from leval_tasks.common.metrics import FAMILY_OF

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_METHODS = 14
"""More curves in one figure cannot be distinguished, and are not drawn."""

MOST_FIGURES = 60
"""More figures are not drawn: each takes half a second."""

EFFECTIVE = "effective"
DIFFERENCES = "difference"
BY_LENGTH = "length"
FOREST = "forest"
HEAT = "depth"
SUFFIXES = (".svg", ".png", ".pdf")


@dataclass(frozen=True)
class PlannedFigure:
    """A figure that can be drawn.

    Attributes:
        kind: the beginning of its file name.
        block: title of the model that it is about.
        title: what it shows.
        alt_text: its result, for those who cannot see it.
        draw: returns it.
    """

    kind: str
    block: str
    title: str
    alt_text: str
    draw: Callable[[], "Figure"]


def write_figures(
    compared: pd.DataFrame, blocks: pd.DataFrame, folder: Path
) -> dict[str, PlannedFigure]:
    """Write every figure into a folder as SVG, PNG and PDF.

    Args:
        compared: the compared frame.
        blocks: the 64-token blocks of the same runs.
        folder: where the files go.

    Returns:
        Figures by their file names without suffix; none where there would be more than
        `MOST_FIGURES`.
    """
    planned = list(islice(planned_figures(compared, blocks), MOST_FIGURES + 1))
    if len(planned) > MOST_FIGURES:
        return {}
    written = {}
    for at, figure in enumerate(planned):
        name = f"{at:02d}-{figure.kind}"
        write_figure(figure.draw, *(folder / f"{name}{suffix}" for suffix in SUFFIXES))
        written[name] = figure
    return written


def planned_figures(compared: pd.DataFrame, blocks: pd.DataFrame) -> Iterator[PlannedFigure]:
    """Yield what there is to draw: effective context, numbers by length, differences of scores.

    Args:
        compared: the compared frame.
        blocks: the 64-token blocks of the same runs.
    """
    methods = compared[~compared["method"].eq(REFERENCE)]
    styles = method_styles(methods["label"].dropna())
    yield from _effective_figures(methods, blocks, styles)
    main = methods[main_numbers(methods) & methods["status"].eq("done")]
    yield from _heat_maps(methods)
    yield from _length_figures(main, styles)
    yield from _forest_figures(main, styles)


def _effective_figures(
    compared: pd.DataFrame, blocks: pd.DataFrame, styles: MethodStyles
) -> Iterator[PlannedFigure]:
    """Yield the figures of effective context length, one or two per model.

    The first has the increase of the loss by position, the second the differences between methods,
    where any were compared. Models with more than `MOST_METHODS` methods have none.
    """
    rows = compared[compared["task"] == TASK]
    if rows.empty:
        return
    curves = position_curves(compared, blocks)
    for block, of_block in rows.groupby("block", sort=False):
        model_summary = summary(str(block), of_block)
        if model_summary is None or len(model_summary.methods) > MOST_METHODS:
            continue
        curves_of_block = curves[curves["block"] == block]
        yield PlannedFigure(
            EFFECTIVE,
            str(block),
            f"{block}: loss increase by position",
            increase_alt_text(model_summary),
            partial(increase_figure, model_summary, of_block, curves_of_block, styles),
        )
        pairs = method_pairs(of_block)
        if not pairs.empty and len(pairs[["label", "baseline"]].drop_duplicates()) <= MOST_METHODS:
            yield PlannedFigure(
                DIFFERENCES,
                str(block),
                f"{block}: differences between methods by position",
                difference_alt_text(model_summary, pairs),
                partial(difference_figure, model_summary, pairs, curves_of_block, styles),
            )


def _heat_maps(compared: pd.DataFrame) -> Iterator[PlannedFigure]:
    """Yield the accuracy by depth and length of each needle grid."""
    for block, task, rows in needle_grids(compared):
        if rows["label"].nunique() <= MOST_METHODS:
            title = f"{block}: {task_label(task)}, accuracy by depth and length"
            alt_text = heat_map_alt_text(task, rows)
            yield PlannedFigure(HEAT, block, title, alt_text, partial(heat_map_figure, task, rows))


def _length_figures(main: pd.DataFrame, styles: MethodStyles) -> Iterator[PlannedFigure]:
    """Yield a figure for each block, task and metric that was run at several lengths."""
    is_drawn = main["task"].isin(list(FAMILY_OF)) | main["kind"].eq("score")
    is_drawn &= is_at_length(main) | ~is_needle_grid(main)
    keys = ["block", task_titles(main[is_drawn]), "metric", "filter"]
    for (block, task, metric, _), rows in main[is_drawn].groupby(keys, sort=False, dropna=False):
        if rows["length"].nunique() > 1 and rows["label"].nunique() <= MOST_METHODS:
            title = f"{block}: {task}, {str(metric).replace('_', ' ')} by length"
            draw = partial(length_figure, rows, styles)
            yield PlannedFigure(BY_LENGTH, str(block), title, _length_alt_text(title, rows), draw)


def _forest_figures(main: pd.DataFrame, styles: MethodStyles) -> Iterator[PlannedFigure]:
    """Yield the differences of scores for each block and context length; not of the sample."""
    is_compared = main["unit"].eq("share") & main["difference"].notna() & main["sample"].ne(True)
    keys = ["block", "context_length"]
    for (block, length), rows in main[is_compared].groupby(keys, sort=False):
        if rows["label"].nunique() <= MOST_METHODS:
            baseline = rows["baseline"].iloc[0]
            title = f"{block}: difference from {baseline} at {length_label(length)}"
            significant = rows[rows["mark"] == SIGNIFICANT]
            names = significant["label"] + " on " + task_titles(significant)
            result = ", ".join(dict.fromkeys(names)) or "none"
            alt_text = f"{title}. Significant differences: {result}."
            draw = partial(forest_figure, rows, styles)
            yield PlannedFigure(FOREST, str(block), title, alt_text, draw)


def _length_alt_text(title: str, rows: pd.DataFrame) -> str:
    longest = rows[rows["length"] == rows["length"].max()].dropna(subset=["value"])
    values = [
        f"{label} {value:.3g}"
        for label, value in zip(longest["label"], longest["value"], strict=True)
    ]
    return f"{title}. At {length_label(rows['length'].max())}: {', '.join(values)}."


def length_figure(rows: pd.DataFrame, styles: MethodStyles) -> "Figure":
    """Draw scores or perplexities by context length, with 95% intervals; below, differences.

    Args:
        rows: of the compared frame, of one block, task and metric.
        styles: of each method.
    """
    has_differences = bool(rows["difference"].notna().any())
    height = 6.2 if has_differences else 3.8
    figure, grid = new_figure(7.2, height, rows=1 + has_differences, sharex=True)
    first = rows.iloc[0]
    is_share = first["unit"] == "share"
    scale = 100.0 if is_share else 1.0

    grid[0].set_ylabel(_length_axis(first))
    grid[0].set_title(literal_text(f"{task_titles(rows).iloc[0]} by context length"))
    _draw_curves(grid[0], rows, ("value", "low", "high"), scale, styles)
    if has_differences:
        _draw_curves(grid[1], rows, ("difference", "diff_low", "diff_high"), scale, styles)
        unit = "points" if is_share else "nats/token (positive is worse)"
        grid[1].set_ylabel(f"difference from {literal_text(first['baseline'])},\n{unit}")
        grid[1].axhline(0, color=INK, linewidth=1)
    if pd.notna(first["chance"]) and is_share:
        chance = scale * first["chance"]
        grid[0].axhline(chance, color=EDGE, **DOTTED)
        grid[0].annotate("chance", (1, chance), ha="right", **ON_LEVEL)

    lengths = sorted(rows["length"].dropna().astype(int).unique())
    grid[-1].set_xscale("log", base=2)
    grid[-1].set_xticks(lengths, [length_label(length) for length in lengths])
    grid[-1].minorticks_off()
    grid[-1].set_xlabel("Context length (tokens)")
    legend(figure, grid[:1], "right upper")
    note = f"{first['block']} · bands: 95% intervals, by document"
    add_source_note(figure, note, first["command"] or "")
    return figure


def _length_axis(first: pd.Series) -> str:
    """Return the label of the axis of a number."""
    name = literal_text(first["metric"]).replace("_", " ")
    if first["unit"] == "share":
        return f"{name}, %"
    return name if is_higher_better(first) else f"{name} (lower is better)"


def _draw_curves(
    axes: Any, rows: pd.DataFrame, names: Sequence[str], scale: float, styles: MethodStyles
) -> None:
    """Draw a curve with a band for each method; `names` are those of value, low and high."""
    value, low, high = names
    for label, part in rows.dropna(subset=[value]).groupby("label", sort=False):
        by_length = part.sort_values("length")
        lengths = by_length["length"].astype(float)
        style = styles[str(label)]
        axes.plot(lengths, scale * by_length[value], markersize=4, linewidth=1.4, **style)
        ends = (scale * by_length[end].astype(float) for end in (low, high))
        axes.fill_between(lengths, *ends, color=style["color"], alpha=0.1, linewidth=0)


def forest_figure(rows: pd.DataFrame, styles: MethodStyles) -> "Figure":
    """Draw differences from the baseline in points, with intervals; filled where significant.

    Args:
        rows: of the compared frame, of one block and context length.
        styles: of each method.
    """
    rows = rows.assign(task_title=task_titles(rows)).drop_duplicates(["label", "task_title"])
    tasks = list(rows["task_title"].unique())
    labels = list(rows["label"].unique())
    figure, (axes,) = new_figure(6.8, 1.5 + 0.3 * (len(labels) + 0.8) * len(tasks))
    for at, label in enumerate(labels):
        part = rows[rows["label"] == label]
        style = styles[label]
        height = part["task_title"].map(tasks.index) + 0.64 * ((at + 0.5) / len(labels) - 0.5)
        ends = (100 * part[end].astype(float) for end in ("diff_low", "diff_high"))
        axes.hlines(height, *ends, color=style["color"], linewidth=1.5)
        fill = np.where(part["mark"] == SIGNIFICANT, style["color"], PAPER)
        axes.scatter(
            100 * part["difference"],
            height,
            c=list(fill),
            marker=style["marker"],
            edgecolors=style["color"],
            zorder=3,
        )
        axes.plot([], [], **{**style, "linestyle": "none"})
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(tasks)), [literal_text(task) for task in tasks])
    axes.set_ylim(len(tasks) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    first = rows.iloc[0]
    length = length_label(first["context_length"])
    axes.set_title(literal_text(f"Difference from {first['baseline']} at {length}"))
    axes.set_xlabel("points; right is better")
    legend(figure, [axes], "upper right", min(4, len(labels)))
    note = f"{first['block']} · filled: significant (Holm, 5%); lines: intervals at that level"
    add_source_note(figure, note, first["command"] or "")
    return figure
