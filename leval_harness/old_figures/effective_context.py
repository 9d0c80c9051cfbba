"""Gain from full context by position, with what the tests of each bin can tell."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from leval_harness.analysis.effective_context import EffectiveLine
from leval_harness.old_figures.style import DASHED, SMALL, Looks, Picture, literal
from leval_tasks.statistics.effective_context import Bin


def effective_figure(
    lines: Sequence[EffectiveLine], command: str, titles: Mapping[str, str], looks: Looks
) -> Any:
    """Gains over short windows by position, and below gains over the baseline, as a `Figure`.

    Lines are of one block; `titles` names methods as readers know them. A band ends at the gains
    at which a bin's one-sided tests begin to decide. A band above the dotted line at minus the
    margin shows no degradation.
    """
    compared = any(line.against for line in lines)
    picture = Picture(7.2, 6.6 if compared else 4.2, rows=2 if compared else 1)
    gains, *below = picture.grid
    for line in sorted(lines, key=lambda line: line.method):
        look = {**looks[line.method], "label": literal(titles[line.method]), "markersize": 4}
        _draw(gains, line.these.bins, look)
        if line.against:
            _draw(below[0], line.against.bins, look)
    for axes in picture.grid:
        axes.axhline(0, color="black", linewidth=1)
        axes.axhline(-lines[0].margin, color="black", linewidth=0.8, linestyle=":")
    _mark_claims(gains, lines, titles)
    _show_curves(gains, [each.gain for line in lines for each in line.these.bins])
    for axes in below:
        bins = [each for line in lines if line.against for each in line.against.bins]
        _show_curves(axes, [each.gain for each in bins])
    picture.grid[-1].set_xlabel("Position in the text (tokens)")
    gains.set_ylabel("NLL gain over short windows,\nnats/token, clipped")
    gains.set_title("What full context adds, by position", loc="left")
    for axes in below:
        axes.set_ylabel("NLL gain over the baseline,\nnats/token")
        axes.sharex(gains)
    picture.legend([gains], "right upper")
    note = "bands: gains that these texts cannot rule out; dotted: the margin"
    picture.sign(f"{lines[0].block} · {note}", [command])
    return picture.figure


def _mark_claims(axes: Any, lines: Sequence[EffectiveLine], titles: Mapping[str, str]) -> None:
    """The lengths that the configs claim, where texts reach them."""
    end = max((each.end for line in lines for each in line.these.bins), default=0)
    claims = {line.claimed for line in lines if line.claimed and line.claimed <= end}
    for claimed in sorted(claims):
        methods = {line.method for line in lines if line.claimed == claimed}
        who = ", ".join(sorted(titles[method] for method in methods))
        axes.axvline(claimed, **DASHED)
        axes.annotate(
            literal(f"claimed context, {who}: {claimed:,}", 60),
            (claimed, 0), xycoords=("data", "axes fraction"), xytext=(-3, 3),
            textcoords="offset points", ha="right", va="bottom", rotation=90,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}, **SMALL,
        )  # fmt: skip


def _show_curves(axes: Any, gains: Sequence[float]) -> None:
    """Limits of the axis by the curves: bands that are far wider end at the edge."""
    low, high = min(0.0, *gains), max(0.0, *gains)
    room = 0.6 * max(high - low, 0.02)
    axes.set_ylim(low - room, high + room)


def _draw(axes: Any, bins: Sequence[Bin], look: dict[str, Any]) -> None:
    """A curve of gains at the middles of bins, with its band."""
    middles = [(each.start + each.end) / 2 for each in bins]
    axes.plot(middles, [each.gain for each in bins], **look)
    low, high = (
        [math.nan if end is None else end for end in ends]
        for ends in ([each.low for each in bins], [each.high for each in bins])
    )
    axes.fill_between(middles, low, high, color=look["color"], alpha=0.12, linewidth=0)
