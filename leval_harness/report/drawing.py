"""One style for all figures, and one way to write them, by matplotlib."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resonance_vllm.common.errors import check_choice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette for any colour vision, without yellow, which is unreadable on white
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
RC = {
    "svg.hashsalt": "leval-harness", "font.size": 9, "axes.titlesize": 10, "axes.grid": True,
    "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False,
    "grid.color": "#dddddd", "grid.linewidth": 0.6, "axes.titlelocation": "left",
    "legend.frameon": False, "legend.fontsize": 8,
}  # fmt: skip
"""Settings of matplotlib; the salt keeps the ids in an SVG the same."""

SMALL = {"fontsize": 7, "color": "#555555"}
DOTTED, DASHED = {"linewidth": 0.9, "linestyle": ":"}, {"linewidth": 0.9, "linestyle": "--"}
ON_LEVEL = {**SMALL, "xycoords": ("axes fraction", "data"), "va": "bottom"}
"""Text above a line at a level: its place is a fraction of the axes, and the level."""

LONGEST = 110
"""Letters of a line of text."""

MethodStyles = Mapping[str, dict[str, Any]]


def method_styles(methods: Iterable[str]) -> MethodStyles:
    """Label, colour and marker of each method: the same in every figure of a set."""
    return {
        method: {
            "label": literal_text(method),
            "color": PALETTE[at % 7],
            "marker": MARKERS[(at + at // 7) % 7],
        }
        for at, method in enumerate(dict.fromkeys(methods))
    }


def literal_text(text: object) -> str:
    """Text from results: never read as mathematics, never too long."""
    shown = str(text)
    cut = shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"
    return cut.replace("$", r"\$")


def new_figure(
    width: float, height: float, columns: int = 1, rows: int = 1, **shared: Any
) -> tuple["Figure", list[Any]]:
    """A figure without a display or pyplot's state, sizes in inches, and its axes by rows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **shared).flat)


def add_source_note(figure: "Figure", *lines: str) -> None:
    """State below a figure which model, data and command made it."""
    text = "\n".join(literal_text(line) for line in dict.fromkeys(lines) if line)
    figure.supxlabel(text, x=0.01, ha="left", **SMALL)


def legend(figure: "Figure", grid: Sequence[Any], place: str, columns: int = 1) -> None:
    """One legend outside the axes, with fewer columns where so many are wider than the figure."""
    found: dict[str, Any] = {}
    for axes in grid:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    longest = max(map(len, found), default=0)
    fitting = int(figure.get_figwidth() / (0.55 + 0.063 * longest))  # a line, a letter
    figure.legend(
        found.values(), found, loc=f"outside {place}", ncols=max(1, min(columns, fitting))
    )


@contextmanager
def figure_style() -> Iterator[None]:
    """The settings that hold while figures are drawn and saved."""
    import matplotlib as mpl

    with mpl.rc_context(RC):
        yield


def write_figure(draw: Callable[[], "Figure"], *targets: Path, dpi: int = 200) -> None:
    """Write what `draw` returns into each file; its suffix is the format, an SVG has no date.

    Raises:
        SettingError: a file ends in something else than `.svg`, `.pdf` or `.png`.
        OSError: a file cannot be written.
    """
    for target in targets:
        check_choice("figure", target.suffix, (".svg", ".pdf", ".png"))
    with figure_style():
        figure = draw()
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            undated = {"metadata": {"Date": None}} if target.suffix == ".svg" else {}
            figure.savefig(target, dpi=dpi, **undated)
