"""One figure of a diff: the difference of losses by position, with intervals and margin."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leval_harness.drawing import DOTTED, ON_LEVEL, PALETTE, legend, picture, sign
from leval_harness.names import length_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def parity_figure(content: Mapping[str, Any]) -> "Figure":
    """A panel for each length; `content` is that of `diff.json`.

    The steps are the bins of the verdict, their boxes the intervals.
    """
    measured = content["lengths"]
    figure, grid = picture(7.2, 0.8 + 2.9 * len(measured), rows=len(measured))
    for axes, each in zip(grid, measured, strict=False):
        _bins(axes, each)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_ylabel("Loss of B minus loss of A,\nnats a token (lower: B is better)")
        axes.set_xlim(0, each["length"])
        texts = f"{length_label(each['length'])} tokens, {each['texts']} texts"
        axes.set_title(f"{texts}: {each['verdict']}")
    grid[-1].set_xlabel("position in the text, tokens")
    legend(figure, grid[:1], "upper center", 2)
    a, b = (content[side].get("text", "saved reference") for side in ("a", "b"))
    sign(figure, f"A: {a}", f"B: {b}")
    return figure


def _bins(axes: Any, found: Mapping[str, Any]) -> None:
    """The bins of the verdict, the margin, and how far losses are equal bit for bit."""
    if found["identical"]:
        axes.axvspan(0, found["identical"], color="#888888", alpha=0.12, label="equal bit for bit")
    for number, part in enumerate(found["bins"]):
        place = [part["start"], part["end"]]
        label = "mean of a bin, its interval" if number == 0 else "_bin"
        axes.plot(place, [part["difference"]] * 2, color=PALETTE[1], linewidth=2, label=label)
        if part["low"] is not None and part["high"] is not None:
            ends = ([part["low"]] * 2, [part["high"]] * 2)
            axes.fill_between(place, *ends, color=PALETTE[1], alpha=0.12, linewidth=0)
    for level in (found["margin"], -found["margin"]):
        axes.axhline(level, color="#888888", **DOTTED)
        axes.annotate(f"margin {level:+g}", (0, level), ha="left", **ON_LEVEL)
