"""One style for all figures, and one way to write them, by matplotlib."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resonance_vllm.common.errors import check_choice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette for any colour vision, without yellow, which is unreadable on white
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINE_STYLES = ("-", (0, (4, 1.5)))
"""A second round through the palette is dashed: fourteen methods can be distinguished."""

RC = {
    "svg.hashsalt": "leval-harness",  # keeps the ids in an SVG the same
    "svg.fonttype": "none",  # text stays text in SVG …
    "pdf.fonttype": 42,  # … and in PDF
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": "#888888",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
}
"""Settings of matplotlib."""

GREY = "#555555"
SMALL = {"fontsize": 7, "color": GREY}
DOTTED = {"linewidth": 0.9, "linestyle": ":"}
DASHED = {"linewidth": 0.9, "linestyle": "--"}
ON_LEVEL = {**SMALL, "xycoords": ("axes fraction", "data"), "va": "bottom"}
"""Text above a line at a level: its position is a fraction of the axes, and the level."""

LONGEST_TEXT = 110
"""Letters of a line of text."""

LONGEST_NAME = 34
"""Letters of a name at the end of a line."""

LETTER_WIDTH = 0.082
"""Inches of a letter in the size of names, rather too many."""

MethodStyles = Mapping[str, dict[str, Any]]


def method_styles(methods: Iterable[str]) -> MethodStyles:
    """Return label, colour, marker and line style of each method, for every figure of a set."""
    styles = {}
    for at, method in enumerate(dict.fromkeys(methods)):
        round_of_palette = at // len(PALETTE)
        styles[method] = {
            "label": literal_text(method),
            "color": PALETTE[at % len(PALETTE)],
            "marker": MARKERS[(at + round_of_palette) % len(MARKERS)],
            "linestyle": LINE_STYLES[round_of_palette % len(LINE_STYLES)],
        }
    return styles


def literal_text(text: object, longest: int = LONGEST_TEXT) -> str:
    """Return text from results so that it is never read as mathematics, and never too long."""
    letters = str(text)
    if len(letters) > longest:
        letters = f"{letters[: longest - 1]}…"
    return letters.replace("$", r"\$")


def new_figure(
    width: float, height: float, columns: int = 1, rows: int = 1, **shared: Any
) -> tuple["Figure", list[Any]]:
    """Return a figure without a display or pyplot's state, and its axes by rows.

    Args:
        width: inches.
        height: inches.
        columns: axes beside each other.
        rows: axes below each other.
        shared: `sharex` and `sharey` of matplotlib's `subplots`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **shared).flat)


def figure_with_names(
    width: float, height: float, names: Iterable[str], below: float
) -> tuple["Figure", Any]:
    """Return a figure with one axes and room for names at the ends of its lines.

    Args:
        width: inches.
        height: inches.
        names: what is written to the right of the axes.
        below: inches below the axes, for the axis and notes.
    """
    from matplotlib.figure import Figure

    longest = max((min(len(name), LONGEST_NAME) for name in names), default=0)
    right = 0.4 + LETTER_WIDTH * longest
    left = 0.75
    top = 0.4
    figure = Figure(figsize=(width, height))
    box = (left / width, below / height)
    size = ((width - left - right) / width, (height - top - below) / height)
    return figure, figure.add_axes((*box, *size))


@dataclass(frozen=True)
class LineEnd:
    """The end of a line that gets a name.

    Attributes:
        name: what is written.
        x: position of the end, data.
        y: the same.
        color: of line and name.
    """

    name: str
    x: float
    y: float
    color: str


def name_line_ends(axes: Any, ends: Sequence[LineEnd]) -> None:
    """Write names beside the ends of lines, moved apart so that none covers another.

    The limits of the axes must be final. A thin line leads from each end to its name.
    """
    if not ends:
        return
    size = 9.0
    height = axes.get_position().height * axes.figure.get_figheight() * 72
    gap = 1.25 * size / height
    low, high = axes.get_ylim()
    ordered = sorted(ends, key=lambda end: end.y)
    wanted = [(end.y - low) / (high - low) for end in ordered]
    for end, level in zip(ordered, spread(wanted, gap), strict=True):
        axes.annotate(
            literal_text(end.name, LONGEST_NAME),
            (end.x, end.y),
            xytext=(1.03, level),
            textcoords="axes fraction",
            fontsize=size,
            fontweight="bold",
            color=end.color,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": end.color, "lw": 0.6, "shrinkA": 1},
        )


def spread(levels: Sequence[float], gap: float) -> list[float]:
    """Move ascending levels apart to at least `gap`, each as little as its neighbours allow.

    Args:
        levels: fractions of the height of the axes.
        gap: the same.

    Returns:
        Levels in the same order; all between 0 and 1 where there is room for them.
    """
    # Levels closer than the gap form a cluster around their mean; clusters that touch are joined.
    clusters: list[list[float]] = []
    for level in levels:
        clusters.append([level])
        while len(clusters) > 1 and _touch(clusters[-2], clusters[-1], gap):
            last = clusters.pop()
            clusters[-1] += last
    moved = [level for cluster in clusters for level in _placed(cluster, gap)]
    for at in range(1, len(moved)):
        moved[at] = max(moved[at], moved[at - 1] + gap)
    for at in range(len(moved) - 2, -1, -1):
        moved[at] = min(moved[at], moved[at + 1] - gap)
    return moved


def _touch(cluster: Sequence[float], following: Sequence[float], gap: float) -> bool:
    return _placed(following, gap)[0] - _placed(cluster, gap)[-1] < gap


def _placed(cluster: Sequence[float], gap: float) -> list[float]:
    """Return the levels of a cluster, `gap` from each other, within the axes where they fit."""
    extent = gap * (len(cluster) - 1)
    first = sum(cluster) / len(cluster) - extent / 2
    first = max(min(first, 1 - extent), 0)
    return [first + gap * at for at in range(len(cluster))]


def add_source_note(figure: "Figure", *lines: str) -> None:
    """State below a figure which model, data and command made it."""
    text = "\n".join(literal_text(line) for line in dict.fromkeys(lines) if line)
    figure.supxlabel(text, x=0.01, ha="left", **SMALL)


def legend(figure: "Figure", grid: Sequence[Any], position: str, columns: int = 1) -> None:
    """Draw one legend outside the axes, with as many columns as the figure's width allows.

    Args:
        figure: what gets the legend.
        grid: axes whose labelled lines are in it, each label once.
        position: as in matplotlib, without `outside`.
        columns: at most so many.
    """
    handles: dict[str, Any] = {}
    for axes in grid:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    longest = max(map(len, handles), default=0)
    inches_of_entry = 0.55 + 0.063 * longest
    fitting = int(figure.get_figwidth() / inches_of_entry)
    figure.legend(
        handles.values(), handles, loc=f"outside {position}", ncols=max(1, min(columns, fitting))
    )


@contextmanager
def figure_style() -> Iterator[None]:
    """Hold the settings while figures are drawn and saved."""
    import matplotlib as mpl

    with mpl.rc_context(RC):
        yield


def write_figure(draw: Callable[[], "Figure"], *targets: Path, dpi: int = 200) -> None:
    """Write a figure into files; the suffix of each is its format.

    Args:
        draw: returns the figure.
        targets: `.svg`, `.pdf` or `.png`; an SVG and a PDF have no date, so that they are the same
            each time.
        dpi: dots per inch of a PNG.

    Raises:
        SettingError: a file ends in something else.
        OSError: a file cannot be written.
    """
    for target in targets:
        check_choice("figure", target.suffix, (".svg", ".pdf", ".png"))
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}
    with figure_style():
        figure = draw()
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(target, dpi=dpi, metadata=undated[target.suffix])
