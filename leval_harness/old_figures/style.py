"""One look for all figures, and one way to write them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from leval_harness.analysis import Entry
from resonance_vllm.errors import one_of, plain

# Okabe and Ito's palette for any colour vision, without yellow, which is unreadable on white
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", ":", "-.")
RC = {"svg.hashsalt": "leval-harness", "font.size": 9, "axes.titlesize": 10}
"""matplotlib's settings while a figure is drawn and saved; the salt keeps SVG ids the same."""

DOTTED: Mapping[str, Any] = {"linewidth": 0.9, "linestyle": ":"}
"""A line across the axes at a level that readers know."""
DASHED: Mapping[str, Any] = {"color": "#555555", "linewidth": 0.9, "linestyle": "--"}
"""A line across the axes at a length that is claimed or was found."""
SMALL: Mapping[str, Any] = {"fontsize": 7, "color": "#555555"}
"""Text that explains a line or a figure."""
ON_LEVEL: Mapping[str, Any] = {**SMALL, "xycoords": ("axes fraction", "data"), "va": "bottom"}
"""Text above a line at a level: its place is a fraction of the axes, and the level."""

Looks = Mapping[str, Mapping[str, Any]]
"""Of each method its `label`, and `color`, `marker` and `linestyle`, which also differ in black and
white."""


def method_looks(methods: Iterable[str]) -> Looks:
    """A look for each method, by its place in the alphabet: the same in every figure of a set."""
    return {
        method: {
            "label": literal(method),
            "color": PALETTE[at % len(PALETTE)],
            "marker": MARKERS[at % len(MARKERS)],
            "linestyle": LINES[(at // len(PALETTE)) % len(LINES)],
        }
        for at, method in enumerate(sorted(set(methods)))
    }


def literal(text: str, longest: int = 90) -> str:
    """Text from results as a label: never read as mathematics, never too long."""
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return plain(cut).replace("$", r"\$")


class Picture:
    """A matplotlib figure without a display or pyplot's state.

    Attributes:
        figure: the `Figure`.
        grid: its axes, row after row.
    """

    def __init__(self, width: float, height: float, columns: int = 1, rows: int = 1) -> None:
        """Sizes are in inches."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(self.figure)
        self.grid: list[Any] = list(self.figure.subplots(rows, columns, squeeze=False).flat)
        for axes in self.grid:
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(visible=True, color="#dddddd", linewidth=0.6)
            axes.set_axisbelow(True)

    def legend(self, grid: Sequence[Any], place: str, columns: int = 1) -> None:
        """One legend outside the axes; a label that several axes have stands in it once.

        It has fewer columns than `columns` where so many are wider than the figure.
        """
        lines: dict[str, Any] = {}
        for line in chain.from_iterable(axes.get_lines() for axes in grid):
            lines.setdefault(line.get_label(), line)
        shown = [line for label, line in lines.items() if not label.startswith("_")]
        longest = max((len(str(line.get_label())) for line in shown), default=0)
        fitting = int(self.figure.get_figwidth() / (0.55 + 0.063 * longest))  # a line, a letter
        columns = max(1, min(columns, fitting))
        self.figure.legend(
            handles=shown, fontsize=8, frameon=False, loc=f"outside {place}", ncols=columns
        )

    def sign(self, note: str, commands: Iterable[str], data: str = "") -> None:
        """State below the figure which model, which data and which commands made it."""
        parts = [literal(note, 110)]
        if data:
            parts.append(literal(f"data: {data}"))
        parts += [literal(command, 110) for command in commands if command]
        text = "\n".join(dict.fromkeys(parts))
        self.figure.supxlabel(text, x=0.01, ha="left", **SMALL)

    def sign_entries(self, note: str, entries: Sequence[Entry]) -> None:
        """The same for entries of several runs; one run's command stands for all of them."""
        sources = " ".join(sorted({entry.score.source for entry in entries} - {""}))
        self.sign(note, [entries[0].run.command], sources)


def write_figure(draw: Callable[[], Any], *targets: Path, dpi: int = 200) -> None:
    """Write what `draw` returns into each file; its suffix is the format, an SVG has no date.

    Raises:
        SettingError: a file ends in something else than `.svg`, `.pdf` or `.png`.
        OSError: a file cannot be written.
    """
    import matplotlib as mpl

    for target in targets:
        one_of("figure", target.suffix, (".svg", ".pdf", ".png"))
    with mpl.rc_context(RC):
        figure = draw()
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            undated = {"metadata": {"Date": None}} if target.suffix == ".svg" else {}
            figure.savefig(target, dpi=dpi, **undated)
