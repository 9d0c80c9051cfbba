"""One figure of a diff: the difference of losses by position, with band and margin."""

from collections.abc import Mapping
from typing import Any

from leval_harness.analysis.labels import length_label
from leval_harness.figures.style import DOTTED, ON_LEVEL, PALETTE, Picture, literal


def parity_figure(content: Mapping[str, Any]) -> Any:
    """A panel for each length, as a `Figure`; `content` is that of `diff.json`.

    The steps are the bins of the verdict, their boxes the intervals.
    """
    measured = content["lengths"]
    picture = Picture(7.2, 0.8 + 2.9 * len(measured), rows=len(measured))
    for axes, each in zip(picture.grid, measured, strict=False):
        _bins(axes, each)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_ylabel("NLL of B − NLL of A,\nnats/token (lower is better for B)")
        axes.set_xlim(0, each["length"])
        title = f"{length_label(each['length'])} tokens, {each['texts']} texts: {each['verdict']}"
        axes.set_title(title, loc="left")
    picture.grid[-1].set_xlabel("position in the text, tokens")
    picture.legend(picture.grid[:1], "upper center", columns=2)
    a, b = (content[side].get("text", "saved reference") for side in ("a", "b"))
    picture.sign(f"A: {a}", [f"B: {b}"])
    return picture.figure


def _bins(axes: Any, found: Mapping[str, Any]) -> None:
    """The bins of the verdict, the margin, and how far losses are equal bit for bit."""
    if found["identical"]:
        axes.axvspan(0, found["identical"], color="#888888", alpha=0.12, label="equal bit for bit")
    for number, part in enumerate(found["bins"]):
        place = [part["start"], part["end"]]
        label = "mean of a bin and its interval" if number == 0 else "_bin"
        axes.plot(place, [part["difference"]] * 2, color=PALETTE[1], linewidth=2, label=label)
        if part["low"] is not None and part["high"] is not None:
            ends = ([part["low"]] * 2, [part["high"]] * 2)
            axes.fill_between(place, *ends, color=PALETTE[1], alpha=0.12, linewidth=0)
    for sign in (1, -1):
        level = sign * found["margin"]
        axes.axhline(level, color="#888888", **DOTTED)
        axes.annotate(f"margin {literal(format(level, '+g'))}", (0, level), ha="left", **ON_LEVEL)
