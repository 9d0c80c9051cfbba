"""One look for all figures, and one way to write them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leval_border.errors import one_of
from leval_leaderboard.tables.entries import Entry
from leval_leaderboard.tables.escape import plain

# Okabe and Ito's palette, told apart with any colour vision; without yellow, unreadable on white
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", ":", "-.")
RC = {"svg.hashsalt": "leval-harness", "font.size": 9, "axes.titlesize": 10}
"""matplotlib's settings while a figure is drawn and saved; the salt keeps SVG ids the same."""

FORMATS = (".svg", ".pdf", ".png")


@dataclass(frozen=True)
class Look:
    """How a method is drawn; told apart in black and white by marker and line."""

    colour: str
    marker: str
    line: str


Looks = Mapping[str, Look]
"""Of each method by its name."""


def method_looks(methods: Iterable[str]) -> Looks:
    """A look for each method, by its place in the alphabet: the same in every figure of a set."""
    return {
        method: Look(
            PALETTE[at % len(PALETTE)],
            MARKERS[at % len(MARKERS)],
            LINES[(at // len(PALETTE)) % len(LINES)],
        )
        for at, method in enumerate(sorted(set(methods)))
    }


def new_figure(width: float, height: float, panels: int = 1) -> tuple[Any, list[Any]]:
    """A figure without a display and without touching pyplot's state, and its axes.

    Args:
        width: in inches.
        height: in inches.
        panels: axes side by side.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    grid = list(figure.subplots(1, panels, squeeze=False)[0])
    for axes in grid:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    return figure, grid


def literal(text: str, longest: int = 90) -> str:
    """Text from results for a label: never read as mathematics, never too long."""
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return plain(cut).replace("$", r"\$")


def legend(figure: Any, grid: Sequence[Any], place: str, columns: int = 1) -> None:
    """One legend outside the axes; a label that several of them have stands in it once."""
    first: dict[str, Any] = {}
    for line in (line for axes in grid for line in axes.get_lines()):
        if not line.get_label().startswith("_"):
            first.setdefault(line.get_label(), line)
    figure.legend(
        handles=list(first.values()),
        fontsize=8,
        frameon=False,
        loc=f"outside {place}",
        ncols=columns,
    )


def sign(figure: Any, note: str, commands: Iterable[str], data: str = "") -> None:
    """Say below a figure which model, which data and which commands made it."""
    parts = [literal(note, 110)]
    if data:
        parts.append(literal(f"data: {data}"))
    parts += [literal(command, 110) for command in commands if command]
    figure.supxlabel("\n".join(parts), fontsize=7, color="#555555", x=0.01, ha="left")


def sign_entries(figure: Any, note: str, entries: Sequence[Entry]) -> None:
    """The same for entries of one block: a run's command stands for all of them."""
    sources = " ".join(sorted({entry.score.source for entry in entries} - {""}))
    sign(figure, f"{entries[0].block}{note}", [entries[0].run.command], sources)


def write_figure(draw: Callable[[], Any], *targets: Path) -> None:
    """Draw a figure and write it into each file; the file's ending says the format.

    Args:
        draw: returns a matplotlib `Figure`.
        targets: files ending in `.svg` (which bears no date), `.pdf` or `.png`.

    Raises:
        SettingError: another ending.
        OSError: a file cannot be written.
    """
    import matplotlib as mpl

    for target in targets:
        one_of("figure", target.suffix, FORMATS)
    with mpl.rc_context(RC):
        figure = draw()
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            undated = {"metadata": {"Date": None}} if target.suffix == ".svg" else {}
            figure.savefig(target, dpi=200, **undated)
