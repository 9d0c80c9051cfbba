"""Figures of effective context length: the loss increase by position, upwards is worse."""

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from leval_harness.report.drawing import (
    DOTTED,
    GREY,
    LineEnd,
    MethodStyles,
    figure_with_names,
    literal_text,
    name_line_ends,
)
from leval_harness.report.effective_context import WINDOW
from leval_harness.report.effective_summary import ModelSummary, bins_of
from leval_harness.report.number_text import MINUS, tokens_text
from leval_harness.report.verdict import reference_text
from leval_harness.results.layout import REFERENCE
from leval_tasks.statistics.effective_context import BLOCK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 9.2
HEIGHT = 4.4
BELOW = 0.88
"""Inches below the axes: ticks, label and two lines of notes."""

NOTE_LETTERS = 150
"""Letters of a line of notes."""

NATIVE_SHADE = "#f0f3f7"
WINDOW_TEXT = f"Lines: running mean over {WINDOW * BLOCK} tokens."


def increase_figure(
    answer: ModelSummary, rows: pd.DataFrame, curves: pd.DataFrame, styles: MethodStyles
) -> "Figure":
    """Draw each method's loss increase over the reference by position.

    Args:
        answer: what was measured of the model.
        rows: its effective-context rows of the compared frame.
        curves: its rows of `position_curves`.
        styles: of each method.
    """
    bins = bins_of(rows[rows["baseline"] == REFERENCE])
    lines = {method.method: (method.method, REFERENCE) for method in answer.methods}
    figure, axes = _axes_with_lines(answer, bins, curves, lines, styles)
    margin = answer.methods[0].margin
    axes.axhline(margin, color=GREY, **DOTTED)
    axes.annotate(
        f"margin: {margin:g}",
        (0, margin),
        xycoords=("axes fraction", "data"),
        xytext=(3, 2),
        textcoords="offset points",
        color=GREY,
        fontsize=8,
    )
    axes.set_title(f"Loss increase over {reference_text(answer)} (the reference)")
    axes.set_ylabel("Loss increase (nats/token)")
    note = (
        f"{WINDOW_TEXT} Bands: 99.5% intervals, simultaneous over the bins of a method. "
        f"Below {margin:g} an increase is treated as negligible."
    )
    _add_notes(figure, answer, note)
    return figure


def difference_figure(
    answer: ModelSummary, rows: pd.DataFrame, curves: pd.DataFrame, styles: MethodStyles
) -> "Figure":
    """Draw the difference between methods on the same tokens by position.

    Args:
        answer: what was measured of the model.
        rows: its effective-context rows of the compared frame.
        curves: its rows of `position_curves`.
        styles: of each method.
    """
    pairs = rows[rows["baseline"].notna() & rows["baseline"].ne(REFERENCE)]
    bins = bins_of(pairs)
    lines = {
        f"{label} {MINUS} {baseline}": (label, baseline)
        for label, baseline in bins[["label", "baseline"]].drop_duplicates().to_numpy()
    }
    figure, axes = _axes_with_lines(answer, bins, curves, lines, styles)
    axes.set_title("Difference between methods on the same tokens")
    axes.set_ylabel("Loss difference (nats/token)")
    note = f"{WINDOW_TEXT} Bands: 99.5% intervals, simultaneous over the bins of a pair."
    _add_notes(figure, answer, note)
    return figure


def _axes_with_lines(
    answer: ModelSummary,
    bins: pd.DataFrame,
    curves: pd.DataFrame,
    lines: Mapping[str, tuple[str, str]],
    styles: MethodStyles,
) -> tuple["Figure", Any]:
    """Draw lines and bands over position, with the native context length shaded.

    Args:
        answer: what was measured of the model.
        bins: rows whose intervals are the bands.
        curves: the points of the lines.
        lines: name -> method and what its difference is from.
        styles: of each method.
    """
    figure, axes = figure_with_names(WIDTH, HEIGHT, lines, BELOW)
    ends = []
    baselines = list(dict.fromkeys(baseline for _, baseline in lines.values()))
    for name, (label, baseline) in lines.items():
        # The colour is the method's; against a second baseline its line is dashed.
        style = dict(styles[label])
        if baselines.index(baseline) > 0:
            style["linestyle"] = "--"
        own_bins = bins[bins["label"].eq(label) & bins["baseline"].eq(baseline)]
        _draw_bands(axes, own_bins, style["color"])
        own = curves[curves["label"].eq(label) & curves["baseline"].eq(baseline)]
        if own.empty:
            continue
        axes.plot(
            own["position"],
            own["difference"],
            color=style["color"],
            linestyle=style["linestyle"],
            linewidth=1.6,
            label=literal_text(name),
            zorder=3,
        )
        last = own.iloc[-1]
        ends.append(LineEnd(name, last["position"], last["difference"], style["color"]))
    first = min(method.length.first for method in answer.methods)
    axes.set_xlim(first, answer.longest)
    axes.set_ylim(*_limits(axes))
    axes.axhline(0, color="#333333", linewidth=1)
    _shade_native_length(axes, answer)
    axes.set_xlabel("Position in the document (tokens)")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", MINUS))
    name_line_ends(axes, ends)
    return figure, axes


def _draw_bands(axes: Any, bins: pd.DataFrame, color: str) -> None:
    """Draw the interval of each bin over its positions."""
    for _, row in bins.iterrows():
        ends = float(row["diff_low"]), float(row["diff_high"])
        if all(np.isfinite(ends)):
            positions = [float(row["start"]), float(row["end"])]
            axes.fill_between(positions, *ends, color=color, alpha=0.16, linewidth=0, zorder=2)


def _limits(axes: Any) -> tuple[float, float]:
    """Return limits that hold everything drawn, with some air; differences of zero are visible."""
    low, high = axes.dataLim.intervaly
    low = min(low, 0.0)
    high = max(high, 0.07)
    extent = high - low
    return low - 0.05 * extent, high + 0.1 * extent  # room for the words at the top


def _shade_native_length(axes: Any, answer: ModelSummary) -> None:
    if answer.native is None:
        return
    first, last = axes.get_xlim()
    end = min(answer.native, last)
    axes.axvspan(first, end, color=NATIVE_SHADE, zorder=0, linewidth=0)
    axes.annotate(
        f"native context length: {tokens_text(answer.native)} tokens",
        (end, 1),
        xycoords=("data", "axes fraction"),
        xytext=(-5, -4),
        textcoords="offset points",
        ha="right",
        va="top",
        color=GREY,
        fontsize=8,
    )


def _add_notes(figure: "Figure", answer: ModelSummary, note: str) -> None:
    documents = max(method.documents for method in answer.methods)
    plural = "" if documents == 1 else "s"
    where = f"{answer.model}, {documents} document{plural}. " if answer.model else ""
    lines = textwrap.wrap(where + note, NOTE_LETTERS)
    text = "\n".join(literal_text(line, NOTE_LETTERS) for line in lines)
    left = 0.75 / WIDTH
    figure.text(left, 0.08 / HEIGHT, text, fontsize=7.5, color=GREY, va="bottom")


def increase_alt_text(answer: ModelSummary) -> str:
    """Return the result that `increase_figure` shows, for those who cannot see it."""
    lengths = [f"{method.method} {method.length.text}" for method in answer.methods]
    return (
        f"Loss increase over {reference_text(answer)} by position, for {answer.model}. "
        f"Effective context length in tokens: {'; '.join(lengths)}."
    )


def difference_alt_text(answer: ModelSummary, rows: pd.DataFrame) -> str:
    """Return the result that `difference_figure` shows, for those who cannot see it."""
    last = bins_of(rows[rows["baseline"].ne(REFERENCE)]).groupby(["label", "baseline"], sort=False)
    parts = []
    for (label, baseline), part in last:
        row = part.iloc[-1]
        positions = f"{tokens_text(row['start'])} to {tokens_text(row['end'])}"
        if row["diff_high"] < 0:
            result = "lower"
        elif row["diff_low"] > 0:
            result = "higher"
        else:
            result = "not significantly different"
        parts.append(f"at {positions} the loss of {label} is {result} than that of {baseline}")
    text = "; ".join(parts).replace("different than that of", "different from that of")
    return f"Difference between methods by position, for {answer.model}: {text}."
