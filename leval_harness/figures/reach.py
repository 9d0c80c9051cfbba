"""What each step of context adds, and what is lost on the tokens that a long context helps."""

import math
from collections.abc import Sequence
from typing import Any

from leval_harness.analysis.reach import ReachLine
from leval_harness.figures.lengths import context_axis, draw_curve
from leval_harness.figures.style import Looks, legend, literal, new_figure, sign
from leval_tasks.statistics.clustered import Estimate
from leval_tasks.statistics.paired import Difference

DWARFED = 20
"""Beyond this ratio of the largest gain to a small one the scale bends, so that both are read."""


def reach_figure(lines: Sequence[ReachLine], looks: Looks, command: str) -> Any:
    """Gains by step, and below losses on key tokens where they are known, of one block's methods.

    Key tokens that a reference model told are the same for all methods: there differences to the
    baseline stand in place of losses.
    """
    from matplotlib.ticker import FixedLocator

    keys = any(point.key for line in lines for point in line.points)
    compared = any(point.key_against for line in lines for point in line.points)
    figure, (gains, *below) = new_figure(7.2, 6.6 if keys else 4.2, rows=2 if keys else 1)
    sizes = []
    for line in sorted(lines, key=lambda line: line.method):
        look = {**looks[line.method], "label": literal(line.method), "markersize": 5}
        steps = [point.step for point in line.points if point.step]
        sizes += [abs(step.difference) for step in steps if step.difference]
        draw_curve(gains, [step.longer for step in steps], [step.gain for step in steps], 1, look)
        found = [(p.length, p.key_against if compared else p.key) for p in line.points]
        curve = [(length, each) for length, each in found if each is not None]
        for axes in below if curve else ():
            draw_curve(axes, [length for length, _ in curve], [_ends(e) for _, e in curve], 1, look)
    if bend := _bend(sizes):
        gains.set_yscale("asinh", linear_width=bend)
        gains.yaxis.set_major_locator(FixedLocator(_powers(bend, max(sizes))))
        gains.yaxis.set_major_formatter("{x:g}")
    lengths = sorted({point.length for line in lines for point in line.points})
    context_axis([gains, *below], lengths)
    for axes in (gains, *below):
        axes.set_xlim(lengths[0] / 1.1, lengths[-1] * 1.1)
    gains.set_ylabel("gain from the next shorter length,\nnats a token")
    gains.axhline(0, color="black", linewidth=1)
    gains.set_title("What each step of context adds", loc="left")
    for axes in below:
        what = "difference to the baseline" if compared else "lower is better"
        axes.set_ylabel(f"loss on key tokens,\nnats, {what}")
        if compared:
            axes.axhline(0, color="black", linewidth=1)
    legend(figure, [gains], "right upper")
    sign(figure, f"{lines[0].block} · bands: 95% intervals, by document", [command])
    return figure


def _ends(told: Estimate | Difference) -> tuple[float, float | None, float | None]:
    value = told.value if isinstance(told, Estimate) else told.difference
    return value, told.low, told.high


def _powers(bend: float, largest: float) -> list[float]:
    """Powers of ten on a scale that bends, and zero: one below the bend would lie on it."""
    powers = [10.0**k for k in range(math.ceil(math.log10(bend)), math.ceil(math.log10(largest)))]
    return [*(-each for each in reversed(powers)), 0.0, *powers]


def _bend(sizes: Sequence[float]) -> float:
    """Where the scale becomes logarithmic: at a small gain, where others dwarf it; else 0."""
    ordered = sorted(sizes)
    small = ordered[len(ordered) // 4] if ordered else 0.0
    return small if len(ordered) > 3 and ordered[-1] > DWARFED * small else 0.0
