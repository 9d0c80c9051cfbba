"""One style for all figures, and one way to write them, by matplotlib."""

import re
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

INK = "#1b1f24"
GREY = "#555555"
EDGE = "#888888"
GRID = "#dddddd"
PAPER = "#ffffff"
NATIVE_SHADE = "#f0f3f7"

DARK = {
    INK: "#e8ecf1",
    GREY: "#a3adb9",
    EDGE: "#717b87",
    GRID: "#2f3740",
    PAPER: "#101418",
    NATIVE_SHADE: "#1c2530",
    "#0072B2": "#4aa3df",
    "#D55E00": "#ff8a3d",
    "#009E73": "#2fc99a",
    "#CC79A7": "#e29ac3",
    "#E69F00": "#f2b632",
    "#56B4E9": "#8fd0ff",
    "#000000": "#ffffff",
}
"""Colour on white -> the same on a dark ground."""

RC = {
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "svg.hashsalt": "leval-harness",  # keeps the ids in an SVG the same
    "svg.fonttype": "none",  # text stays text in SVG …
    "pdf.fonttype": 42,  # … and in PDF
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": EDGE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
}
"""Settings of matplotlib."""

SMALL = {"fontsize": 7, "color": GREY}
DOTTED = {"linewidth": 0.9, "linestyle": ":"}
DASHED = {"linewidth": 0.9, "linestyle": "--"}
ON_LEVEL = {**SMALL, "xycoords": ("axes fraction", "data"), "va": "bottom"}
"""Text above a line at a level: its position is a fraction of the axes, and the level."""

LONGEST_TEXT = 110
"""Letters of a line of text."""

LONGEST_NAME = 34
"""Letters of a name at the end of a line."""

LEFT = 0.75
"""Inches to the left of axes."""

TOP = 0.4
"""Inches above axes, for their title."""

FEW_NAMES = 9
"""More names at the ends of lines are written smaller."""

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
    width: float, heights: Sequence[float], names: Iterable[str], below: float
) -> tuple["Figure", list[Any]]:
    """Return a figure of axes above each other, with room for names at the ends of their lines.

    Args:
        width: inches.
        heights: of the axes from the top, inches.
        names: what is written to the right of the axes.
        below: inches below the last axes, for the axis and notes.
    """
    from matplotlib.figure import Figure

    longest = max((min(len(name), LONGEST_NAME) for name in names), default=0)
    right = 0.5 + LETTER_WIDTH * longest
    height = sum(heights) + TOP * len(heights) + below
    figure = Figure(figsize=(width, height))
    all_axes: list[Any] = []
    bottom = height
    for axes_height in heights:
        bottom -= TOP + axes_height
        box = (LEFT / width, bottom / height)
        size = ((width - LEFT - right) / width, axes_height / height)
        first = all_axes[0] if all_axes else None
        all_axes.append(figure.add_axes((*box, *size), sharex=first))
    return figure, all_axes


@dataclass(frozen=True)
class LineEnd:
    """The end of a line that gets a name.

    Attributes:
        name: what is written.
        x: position of the end, data.
        y: the same.
        color: of the line.
        linestyle: of the line.
    """

    name: str
    x: float
    y: float
    color: str
    linestyle: Any = "-"


def name_line_ends(axes: Any, ends: Sequence[LineEnd]) -> None:
    """Write names beside the ends of lines, moved apart so that none covers another.

    The limits of the axes must be final. A piece of the line itself leads from its end to its name.
    """
    if not ends:
        return
    size = 9.0 if len(ends) <= FEW_NAMES else 8.0
    height = axes.get_position().height * axes.figure.get_figheight() * 72
    gap = 1.25 * size / height
    low, high = axes.get_ylim()
    ordered = sorted(ends, key=lambda end: end.y)
    wanted = [(end.y - low) / (high - low) for end in ordered]
    for end, level in zip(ordered, spread(wanted, gap), strict=True):
        axes.annotate(
            literal_text(end.name, LONGEST_NAME),
            (end.x, end.y),
            xytext=(1.045, level),
            textcoords="axes fraction",
            fontsize=size,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": end.color,
                "linestyle": end.linestyle,
                "lw": 1.6,
                "shrinkA": 2,
                "shrinkB": 0,
                "relpos": (0, 0.5),
            },
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
        # All files share one layout: to find it takes as long as to draw.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(target, dpi=dpi, metadata=undated[target.suffix])
            if target.suffix == ".svg":
                target.write_text(with_dark_colours(target.read_text("utf-8")), "utf-8")


def with_dark_colours(svg: str) -> str:
    """Return an SVG whose colours follow the reader's light or dark setting; paper stays light.

    Args:
        svg: as matplotlib writes it, with the colours of `DARK`.
    """
    names = {light.lower(): f"--c{at}" for at, light in enumerate(DARK)}
    colour = re.compile("|".join(names), re.IGNORECASE)
    head, root, body = svg.partition("<svg ")
    body = colour.sub(lambda match: f"var({names[match[0].lower()]})", body)
    light = ";".join(f"--c{at}:{colour}" for at, colour in enumerate(DARK))
    dark = ";".join(f"--c{at}:{colour}" for at, colour in enumerate(DARK.values()))
    style = (
        f"<style>:root{{{light}}}@media screen and (prefers-color-scheme:dark)"
        f"{{:root{{{dark}}}}}</style>"
    )
    return head + root + body.replace(">", f">{style}", 1)
