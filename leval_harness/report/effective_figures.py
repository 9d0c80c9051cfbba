"""Figures of effective context length: the loss increase by position, upwards is worse."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from leval_harness.report.drawing import (
    DOTTED,
    GREY,
    INK,
    LEFT,
    NATIVE_SHADE,
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
HEIGHT = 3.1
"""Inches of the axes."""

DETAIL_HEIGHT = 2.5
"""Inches of the axes that show lines near the margin, below the others."""

DETAIL = 3.0
"""The highest increase in these axes, in margins."""

MOST_LINES = 3
"""More lines near the margin, below one that leaves it far behind, get axes of their own."""

HEIGHT_PER_LINE = 0.19
"""Inches that a name at the end of a line needs."""

BELOW = 0.88
"""Inches below the axes: ticks, label and two lines of notes."""

SECOND_BASELINE = (0, (1, 1))
"""Line style of differences from another method than most are compared with: dotted."""

BAND_OPACITY = 0.16
FEW_BANDS = 4
"""The bands of more lines are fainter."""

NOTE_LETTERS = 150
"""Letters of a line of notes."""

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
    margin = answer.methods[0].margin
    plotted = _plotted_lines(curves, lines, styles)
    ends = [line.points["difference"].iloc[-1] for line in plotted]
    limit = DETAIL * margin
    near = [line for line, end in zip(plotted, ends, strict=True) if abs(end) < limit]
    far = [line for line in plotted if line not in near]
    named = [plotted]
    if len(near) > MOST_LINES and far:
        named = [far, near]
    figure, all_axes = _axes_with_lines(answer, bins, plotted, named)
    if len(named) > 1:
        _show_near_margin(all_axes[1], near, limit)
    for axes in all_axes:
        _draw_margin(axes, margin)
        axes.set_ylabel("Loss increase (nats/token)")
    all_axes[0].set_title(f"Loss increase over {reference_text(answer)} (the reference)")
    for axes, lines_of_axes in zip(all_axes, named, strict=True):
        name_line_ends(axes, [line.end for line in lines_of_axes])
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
    plotted = _plotted_lines(curves, lines, styles)
    figure, (axes,) = _axes_with_lines(answer, bins, plotted, [plotted])
    axes.set_title("Difference between methods on the same tokens")
    axes.set_ylabel("Loss difference (nats/token)")
    name_line_ends(axes, [line.end for line in plotted])
    note = f"{WINDOW_TEXT} Bands: 99.5% intervals, simultaneous over the bins of a pair."
    _add_notes(figure, answer, note)
    return figure


@dataclass(frozen=True, eq=False)
class PlottedLine:
    """A line with its bands.

    Attributes:
        name: what is written at its end.
        label: the method.
        baseline: what its difference is from.
        points: `position` in tokens and `difference` in nats/token.
        color: of the method, in every figure.
        linestyle: of the method; dashed against a second baseline.
    """

    name: str
    label: str
    baseline: str
    points: pd.DataFrame
    color: str
    linestyle: Any

    @property
    def end(self) -> LineEnd:
        """Return where the line ends."""
        last = self.points.iloc[-1]
        position = float(last["position"])
        return LineEnd(self.name, position, float(last["difference"]), self.color, self.linestyle)


def _plotted_lines(
    curves: pd.DataFrame, lines: Mapping[str, tuple[str, str]], styles: MethodStyles
) -> list[PlottedLine]:
    """Return the lines that have points.

    Args:
        curves: the points of all lines.
        lines: name -> method and what its difference is from.
        styles: of each method.
    """
    plotted = []
    baselines = list(dict.fromkeys(baseline for _, baseline in lines.values()))
    for name, (label, baseline) in lines.items():
        points = curves[curves["label"].eq(label) & curves["baseline"].eq(baseline)]
        if points.empty:
            continue
        linestyle = styles[label]["linestyle"]
        if baselines.index(baseline) > 0:
            linestyle = SECOND_BASELINE
        color = styles[label]["color"]
        plotted.append(PlottedLine(name, label, baseline, points, color, linestyle))
    return plotted


def _axes_with_lines(
    answer: ModelSummary,
    bins: pd.DataFrame,
    lines: Sequence[PlottedLine],
    named: Sequence[Sequence[PlottedLine]],
) -> tuple["Figure", list[Any]]:
    """Draw lines and bands over position, with the native context length shaded.

    Args:
        answer: what was measured of the model.
        bins: rows whose intervals are the bands.
        lines: all of them are drawn in each of the axes.
        named: for each of the axes the lines that have their names there.
    """
    wanted = (HEIGHT, DETAIL_HEIGHT)
    heights = [
        max(height, HEIGHT_PER_LINE * len(names))
        for height, names in zip(wanted, named, strict=False)
    ]
    figure, all_axes = figure_with_names(WIDTH, heights, [line.name for line in lines], BELOW)
    opacity = BAND_OPACITY / min(max(1.0, len(lines) / FEW_BANDS), 2.0)
    first = min(method.length.first for method in answer.methods)
    for axes in all_axes:
        for line in lines:
            is_own = bins["label"].eq(line.label) & bins["baseline"].eq(line.baseline)
            _draw_bands(axes, bins[is_own], line.color, opacity)
            axes.plot(
                line.points["position"],
                line.points["difference"],
                color=line.color,
                linestyle=line.linestyle,
                linewidth=1.6,
                label=literal_text(line.name),
                zorder=3,
            )
        axes.set_xlim(first, answer.longest)
        axes.set_ylim(*_limits(axes))
        axes.axhline(0, color=INK, linewidth=1)
        _shade_native_length(axes, answer, with_words=axes is all_axes[0])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", MINUS))
        axes.tick_params(labelbottom=axes is all_axes[-1])
    all_axes[-1].set_xlabel("Position in the document (tokens)")
    return figure, all_axes


def _show_near_margin(axes: Any, lines: Sequence[PlottedLine], limit: float) -> None:
    """Limit axes to what lies near the margin, down to the lowest of some lines."""
    lowest = min(float(line.points["difference"].min()) for line in lines)
    axes.set_ylim(max(min(lowest, 0.0) - 0.1 * limit, -limit), limit)
    axes.locator_params(axis="y", nbins=5)
    axes.set_title("The same near the margin")


def _draw_margin(axes: Any, margin: float) -> None:
    """Draw the margin as a dotted line, with its value."""
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


def _draw_bands(axes: Any, bins: pd.DataFrame, color: str, opacity: float) -> None:
    """Draw the interval of each bin over its positions."""
    for _, row in bins.iterrows():
        ends = float(row["diff_low"]), float(row["diff_high"])
        if all(np.isfinite(ends)):
            positions = [float(row["start"]), float(row["end"])]
            axes.fill_between(positions, *ends, color=color, alpha=opacity, linewidth=0, zorder=2)


def _limits(axes: Any) -> tuple[float, float]:
    """Return limits that hold everything drawn, with some air; differences of zero are visible."""
    low, high = axes.dataLim.intervaly
    low = min(low, 0.0)
    high = max(high, 0.07)
    extent = high - low
    return low - 0.05 * extent, high + 0.1 * extent  # room for the words at the top


def _shade_native_length(axes: Any, answer: ModelSummary, with_words: bool) -> None:
    """Shade the positions within the native context length, and name it."""
    if answer.native is None:
        return
    first, last = axes.get_xlim()
    end = min(answer.native, last)
    axes.axvspan(first, end, color=NATIVE_SHADE, zorder=0, linewidth=0)
    if not with_words:
        return
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
    bottom = 0.08 / figure.get_figheight()
    figure.text(LEFT / WIDTH, bottom, text, fontsize=7.5, color=GREY, va="bottom")


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
