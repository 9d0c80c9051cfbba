"""One look for all figures: a method keeps its colour, line and marker everywhere."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Okabe and Ito's palette, told apart with any colour vision; without yellow, unreadable on white
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", ":", "-.")
RC = {"svg.hashsalt": "leval-harness", "font.size": 9, "axes.titlesize": 10}
"""matplotlib's settings while a figure is drawn and saved; the salt keeps SVG ids the same."""


@dataclass(frozen=True)
class Look:
    """How a method is drawn; told apart in black and white by marker and line."""

    colour: str
    marker: str
    line: str


def method_colours(methods: Iterable[str]) -> dict[str, Look]:
    """A look for each method, by its place in the alphabet: the same in every figure of a set."""
    return {
        method: Look(
            PALETTE[at % len(PALETTE)],
            MARKERS[at % len(MARKERS)],
            LINES[(at // len(PALETTE)) % len(LINES)],
        )
        for at, method in enumerate(sorted(set(methods)))
    }


def new_figure(width: float, height: float, panels: int = 1) -> tuple[Any, Any]:
    """A figure without a display and without touching pyplot's state, and its axes.

    Args:
        width: in inches.
        height: in inches.
        panels: axes side by side; the second value is a list of them where there are several.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    made = list(figure.subplots(1, panels, squeeze=False)[0])
    for axes in made:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    return figure, made[0] if panels == 1 else made


def literal(text: str, longest: int = 90) -> str:
    """Text from results for a label: never read as mathematics, never too long."""
    from leval_leaderboard.tables.escape import plain

    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return plain(cut).replace("$", r"\$")


def sign(figure: Any, block: str, data: str, *commands: str) -> None:
    """Say below a figure which model, which data and which commands made it."""
    parts = [literal(block, 110)]
    if data:
        parts.append(literal(f"data: {data}"))
    parts += [literal(command, 110) for command in commands if command]
    figure.supxlabel("\n".join(parts), fontsize=7, color="#555555", x=0.01, ha="left")


def save(figure: Any, target: Path) -> None:
    """Write a figure; its file's ending says the format. An SVG bears no date."""
    undated = {"metadata": {"Date": None}} if target.suffix == ".svg" else {}
    figure.savefig(target, dpi=200, **undated)
