"""Gain from full context by position, with what the tests of each bin can tell."""

import math
from collections.abc import Sequence
from typing import Any

from leval_harness.analysis.effective_context import EffectiveLine
from leval_harness.figures.style import Looks, Picture, literal
from leval_tasks.statistics.effective_context import Bin


def effective_figure(lines: Sequence[EffectiveLine], looks: Looks, command: str) -> Any:
    """Gains over short windows by position, and below gains over the baseline, as a `Figure`.

    Lines are of one block. A band ends at the gains at which a bin's one-sided tests begin to
    decide. A band above the dotted line at minus the margin shows no degradation.
    """
    compared = any(line.against for line in lines)
    picture = Picture(7.2, 6.6 if compared else 4.2, rows=2 if compared else 1)
    gains, *below = picture.grid
    for line in sorted(lines, key=lambda line: line.method):
        look = {**looks[line.method], "label": literal(line.method), "markersize": 4}
        _draw(gains, line.these.bins, look)
        if line.against:
            _draw(below[0], line.against.bins, look)
    for axes in picture.grid:
        axes.axhline(0, color="black", linewidth=1)
        axes.axhline(-lines[0].margin, color="black", linewidth=0.8, linestyle=":")
    picture.grid[-1].set_xlabel("Position in the text (tokens)")
    gains.set_ylabel("gain over short windows,\nnats a token, clipped")
    gains.set_title("What full context adds, by position", loc="left")
    for axes in below:
        axes.set_ylabel("gain over the baseline,\nnats a token")
    picture.legend([gains], "right upper")
    note = "bands: where the one-sided tests of a bin decide; dotted: the margin"
    picture.sign(f"{lines[0].block} · {note}", [command])
    return picture.figure


def _draw(axes: Any, bins: Sequence[Bin], look: dict[str, Any]) -> None:
    """A curve of gains at the middles of bins, with its band."""
    middles = [(each.start + each.end) / 2 for each in bins]
    axes.plot(middles, [each.gain for each in bins], **look)
    low, high = (
        [math.nan if end is None else end for end in ends]
        for ends in ([each.low for each in bins], [each.high for each in bins])
    )
    axes.fill_between(middles, low, high, color=look["color"], alpha=0.12, linewidth=0)
