"""Figures from the compared frame, by matplotlib: SVG for the page, PNG and PDF for papers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from leval_harness.report import effective_context as effective
from leval_harness.report.drawing import (
    DASHED,
    DOTTED,
    MARKERS,
    ON_LEVEL,
    SMALL,
    MethodStyles,
    add_source_note,
    legend,
    literal_text,
    method_styles,
    new_figure,
    write_figure,
)  # fmt: skip
from leval_harness.report.labels import length_label, task_label
from leval_harness.report.verdict import higher, main_numbers
from leval_harness.results.layout import REFERENCE
from leval_harness.results.token_blocks import REFERENCES
from leval_tasks.common.metrics import FAMILY_OF

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_METHODS, MOST_FIGURES = 14, 60
"""More curves in one figure cannot be distinguished; more figures are not drawn."""


@dataclass(frozen=True)
class Planned:
    """A figure that can be drawn: what begins its file name, its title, and how."""

    kind: str
    title: str
    draw: Callable[[], "Figure"]


def write_figures(compared: pd.DataFrame, folder: Path) -> dict[str, str]:
    """Write every figure into `folder` as SVG and PNG: `name -> title`, names without suffix.

    None where there would be more than `MOST_FIGURES`: each takes half a second.
    """
    found = list(islice(planned_figures(compared), MOST_FIGURES + 1))
    titles = {}
    for at, each in enumerate(found if len(found) <= MOST_FIGURES else ()):
        name = f"{at:02d}-{each.kind}"
        write_figure(each.draw, folder / f"{name}.svg", folder / f"{name}.png")
        titles[name] = each.title
    return titles


def planned_figures(compared: pd.DataFrame) -> Iterator[Planned]:
    """What there is to draw: effective context, scores by length, differences."""
    compared = compared[~compared["method"].isin(REFERENCES)]
    styles = method_styles(compared["label"].dropna())
    for block, rows in compared[compared["task"] == effective.TASK].groupby("block", sort=False):
        if rows["label"].nunique() <= MOST_METHODS:
            title = f"{block}: effective context length"
            yield Planned("effective", title, partial(effective_figure, rows, styles))
    main = compared[main_numbers(compared) & compared["status"].eq("done")]
    yield from _by_length(main, styles)
    scored = main[main["unit"].eq("share") & main["difference"].notna() & main["sample"].ne(True)]
    for (block, length), rows in scored.groupby(["block", "context_length"], sort=False):
        if rows["label"].nunique() <= MOST_METHODS:
            title = f"{block}: difference to {rows['baseline'].iloc[0]} at {length_label(length)}"
            yield Planned("forest", title, partial(forest_figure, rows, styles))


def _by_length(main: pd.DataFrame, styles: MethodStyles) -> Iterator[Planned]:
    """One for each block, task and metric that was run at several lengths."""
    shown = main["task"].isin(list(FAMILY_OF)) | main["kind"].eq("score")
    names = ["block", "task", "metric", "filter"]
    for (block, task, metric, _), rows in main[shown].groupby(names, sort=False, dropna=False):
        if rows["length"].nunique() > 1 and rows["label"].nunique() <= MOST_METHODS:
            title = f"{block}: {task_label(task)}, {str(metric).replace('_', ' ')} by length"
            yield Planned("length", title, partial(length_figure, rows, styles))


def effective_figure(rows: pd.DataFrame, styles: MethodStyles) -> "Figure":
    """The intervals of one block's table by position; below, methods against others.

    The axis is turned, so that up is better while its numbers are those of the table.
    """
    bins = rows[(rows["metric"] == effective.DIFFERENCE) & rows["start"].notna()]
    whole = (rows["start"].min(), rows["end"].max())
    bins = bins[(bins["start"] != whole[0]) | (bins["end"] != whole[1])]
    against, pairs = bins[bins["baseline"] == REFERENCE], bins[bins["baseline"] != REFERENCE]
    figure, grid = new_figure(
        7.2, 4.0 + 2.4 * bool(len(pairs)), rows=1 + bool(len(pairs)), sharex=True
    )
    _intervals(grid[0], against, {label: styles[label] for label in against["label"].unique()})
    margin, trained = rows["margin"].dropna().iloc[0], rows["trained"].dropna().iloc[0]
    grid[0].axhline(margin, color="black", **DOTTED)
    grid[0].annotate(f"margin {margin:g}", (1, margin), ha="right", **ON_LEVEL)
    grid[0].set_ylabel("Loss minus the reference's,\nnats a token (up is better)")
    grid[0].set_title("Effective context length")
    if len(pairs):
        names = pairs["label"] + " against " + pairs["baseline"]
        others = list(dict.fromkeys(pairs["baseline"]))
        pair_styles = {  # the colour is the method's, the marker that of the other
            name: {
                **styles[label],
                "label": literal_text(name),
                "marker": MARKERS[others.index(other) % 7],
            }
            for name, label, other in zip(names, pairs["label"], pairs["baseline"], strict=True)
        }
        _intervals(grid[1], pairs.assign(label=names), pair_styles)
        grid[1].set_ylabel("Loss minus the other's,\nnats a token (up is better)")
    for axes in grid:
        axes.axhline(0, color="black", linewidth=1)
        if trained < whole[1]:
            axes.axvline(trained, color="#555555", **DASHED)
    if trained < whole[1]:
        place = {"xycoords": ("data", "axes fraction"), "rotation": 90, "va": "bottom"}
        grid[0].annotate(
            f"native context length {trained:,.0f}", (trained, 0.03), ha="right", **place, **SMALL
        )
    grid[-1].set_xlim(0, whole[1] * 1.01)
    grid[-1].set_xlabel("Position in the text (tokens)")
    legend(figure, grid, "upper center", 4)
    documents = int(rows["clusters"].max())
    note = f"{rows['block'].iloc[0]} · {documents} documents · bars: 99.5% intervals, by position together"
    add_source_note(figure, note, rows["command"].iloc[0] or "")
    return figure


def _intervals(axes: Any, bins: pd.DataFrame, styles: MethodStyles) -> None:
    """Each bin of each label as a point with its interval and a line over its positions."""
    for at, (label, style) in enumerate(styles.items()):
        own = bins[bins["label"] == label].astype({"start": float, "end": float})
        shift = (at + 0.5) / len(styles) - 0.5
        middle = (own["start"] + own["end"]) / 2 + 0.5 * shift * (own["end"] - own["start"])
        ends = [own["difference"] - own["diff_low"], own["diff_high"] - own["difference"]]
        axes.errorbar(
            middle, own["difference"], ends, linewidth=1, markersize=4, capsize=2, **style
        )
        axes.hlines(
            own["difference"], own["start"], own["end"], color=style["color"], lw=2, alpha=0.4
        )
    axes.invert_yaxis()


def length_figure(rows: pd.DataFrame, styles: MethodStyles) -> "Figure":
    """Scores or perplexities of one block, task and metric by length, with 95% intervals."""
    compared = rows["difference"].notna().any()
    figure, grid = new_figure(7.2, 6.2 if compared else 3.8, rows=1 + bool(compared), sharex=True)
    first = rows.iloc[0]
    times = 100.0 if first["unit"] == "share" else 1.0
    lower = ", lower is better" if not higher(first) else ""
    grid[0].set_ylabel(
        literal_text(first["metric"]).replace("_", " ") + (", %" if times == 100 else lower)
    )
    grid[0].set_title(literal_text(f"{task_label(first['task'])} by context length"))
    _curves(grid[0], rows, ("value", "low", "high"), times, styles)
    if compared:
        _curves(grid[1], rows, ("difference", "diff_low", "diff_high"), times, styles)
        unit = "points" if times == 100 else "nats/token, negative is better"
        grid[1].set_ylabel(f"difference to {literal_text(first['baseline'])},\n{unit}")
        grid[1].axhline(0, color="black", linewidth=1)
    if pd.notna(first["chance"]) and times == 100:
        grid[0].axhline(100 * first["chance"], color="#888888", **DOTTED)
        grid[0].annotate("chance", (1, 100 * first["chance"]), ha="right", **ON_LEVEL)
    lengths = sorted(rows["length"].dropna().astype(int).unique())
    grid[-1].set_xscale("log", base=2)
    grid[-1].set_xticks(lengths, [length_label(each) for each in lengths])
    grid[-1].minorticks_off()
    grid[-1].set_xlabel("Context length (tokens)")
    legend(figure, grid[:1], "right upper")
    add_source_note(
        figure, f"{first['block']} · bands: 95% intervals, by document", first["command"] or ""
    )
    return figure


def _curves(
    axes: Any, rows: pd.DataFrame, names: Sequence[str], times: float, styles: MethodStyles
) -> None:
    """A curve with a band for each method."""
    value, low, high = names
    for label, part in rows.dropna(subset=[value]).groupby("label", sort=False):
        part, style = part.sort_values("length"), styles[str(label)]
        lengths = part["length"].astype(float)
        axes.plot(lengths, times * part[value], markersize=4, linewidth=1.4, **style)
        band = (times * part[end].astype(float) for end in (low, high))
        axes.fill_between(lengths, *band, color=style["color"], alpha=0.1, linewidth=0)


def forest_figure(rows: pd.DataFrame, styles: MethodStyles) -> "Figure":
    """Differences to the baseline in points, with intervals; filled where significant."""
    tasks, labels = list(rows["task"].unique()), list(rows["label"].unique())
    figure, (axes,) = new_figure(6.8, 1.5 + 0.3 * (len(labels) + 0.8) * len(tasks))
    rows = rows.drop_duplicates(["label", "task"])
    for at, label in enumerate(labels):
        part, style = rows[rows["label"] == label], styles[label]
        height = part["task"].map(tasks.index) + 0.64 * ((at + 0.5) / len(labels) - 0.5)
        ends = (100 * part[end].astype(float) for end in ("diff_low", "diff_high"))
        axes.hlines(height, *ends, color=style["color"], linewidth=1.5)
        fill = np.where(part["mark"] == effective.DIFFERS, style["color"], "white")
        axes.scatter(100 * part["difference"], height, c=list(fill), marker=style["marker"],
                     edgecolors=style["color"], zorder=3)  # fmt: skip
        axes.plot([], [], linestyle="none", **style)
    axes.axvline(0, color="black", linewidth=1)
    axes.set_yticks(range(len(tasks)), [literal_text(task_label(task)) for task in tasks])
    axes.set_ylim(len(tasks) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    first = rows.iloc[0]
    length = length_label(first["context_length"])
    axes.set_title(literal_text(f"Difference to {first['baseline']} at {length}"))
    axes.set_xlabel("points; right is better")
    legend(figure, [axes], "upper right", min(4, len(labels)))
    note = f"{first['block']} · filled: differs (Holm, 5%); lines: intervals at the corrected level"
    add_source_note(figure, note, first["command"] or "")
    return figure
