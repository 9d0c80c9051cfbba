"""Figures show the numbers of the compared frame and of its blocks."""

import itertools
import re

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from block_frames import frames
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex, to_rgb
from matplotlib.text import Text

from leval_harness.report.drawing import (
    DARK,
    EDGE,
    GREY,
    GRID,
    INK,
    NATIVE_SHADE,
    PALETTE,
    PAPER,
    LineEnd,
    add_source_note,
    figure_style,
    figure_with_names,
    legend,
    literal_text,
    method_styles,
    name_line_ends,
    new_figure,
    spread,
    write_figure,
)
from leval_harness.report.effective_context import (
    compared_frame,
    effective_rows,
    position_curves,
)
from leval_harness.report.figures import forest_figure, planned_figures, write_figures
from leval_harness.results.columns import BLOCKS
from leval_harness.results.load import load_results

mpl.use("agg")

NO_BLOCKS = pd.DataFrame(columns=list(BLOCKS))


@pytest.fixture(scope="module")
def compared(sweep):
    return compared_frame(load_results(sweep))


METHODS = {
    "rope": "rope",
    "yarn": "yarn",
    "resonance_yarn": lambda blocks: blocks["yarn"] + 0.18,
}


@pytest.fixture(scope="module")
def effective():
    """The compared frame of three methods on real documents, and its blocks."""
    compared, blocks = frames(METHODS, filter="none", context_length=11264)
    rows = effective_rows(compared, blocks).assign(
        sample=False, group=False, method=lambda rows: rows["label"]
    )
    return pd.concat([compared, rows], ignore_index=True), blocks


def drawn(effective, kind):
    """The figure of a kind, drawn."""
    (figure,) = [each for each in planned_figures(*effective) if each.kind == kind]
    return figure.draw()


def line_of(axes, label):
    (line,) = [line for line in axes.lines if line.get_label() == label]
    return line


def bands_of(axes, color):
    """The rectangles of intervals in a colour: first and last position, low and high."""
    bands = []
    for collection in axes.collections:
        if to_hex(collection.get_facecolor()[0]).upper() == color:
            (path,) = collection.get_paths()
            (left, low), (right, high) = path.vertices.min(axis=0), path.vertices.max(axis=0)
            bands.append((left, right, low, high))
    return bands


def test_increase_draws_numbers_of_frame_and_blocks(effective):
    compared, blocks = effective
    (axes,) = drawn(effective, "effective").axes
    curves = position_curves(compared, blocks)
    bins = compared[compared["metric"].eq("difference") & compared["baseline"].eq("reference")]
    for at, name in enumerate(METHODS):
        own = curves[(curves["label"] == name) & (curves["baseline"] == "reference")]
        line = line_of(axes, name)
        assert np.allclose(line.get_xydata(), own[["position", "difference"]].astype(float))
        assert line.get_color() == PALETTE[at]
        rows = bins.loc[bins["label"] == name, ["start", "end", "diff_low", "diff_high"]]
        assert np.allclose(bands_of(axes, PALETTE[at]), rows.astype(float))


def test_increase_is_upwards_and_shows_the_collapse(effective):
    (axes,) = drawn(effective, "effective").axes
    assert not axes.yaxis_inverted()
    assert "increase" in axes.get_ylabel()
    low, high = axes.get_ylim()
    collapse = np.ptp(line_of(axes, "rope").get_ydata())
    assert collapse / (high - low) > 0.5


def test_increase_says_margin_native_length_and_window(effective):
    figure = drawn(effective, "effective")
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert "margin: 0.05" in texts
    assert "native context length: 8,192 tokens" in texts
    (note,) = [text.get_text() for text in figure.texts]
    assert "running mean over 512 tokens" in note
    (axes,) = figure.axes
    (shade,) = [p for p in axes.patches if to_hex(p.get_facecolor()) == NATIVE_SHADE]
    assert (shade.get_x(), shade.get_x() + shade.get_width()) == (2048, 8192)


def test_differences_are_a_figure_of_their_own(effective):
    compared, blocks = effective
    (axes,) = drawn(effective, "difference").axes
    names = ["yarn − rope", "resonance_yarn − rope", "resonance_yarn − yarn"]
    lines = [line_of(axes, name) for name in names]
    looks = {(line.get_color(), line.get_linestyle()) for line in lines}
    assert len(looks) == len(lines)
    curves = position_curves(compared, blocks)
    own = curves[(curves["label"] == "yarn") & (curves["baseline"] == "rope")]
    assert np.allclose(lines[0].get_ydata(), own["difference"])
    alone = frames({"rope": "rope"}, filter="none", context_length=11264)
    rows = effective_rows(*alone).assign(sample=False, group=False, method="rope")
    frame = pd.concat([alone[0], rows], ignore_index=True)
    assert [each.kind for each in planned_figures(frame, alone[1])] == ["effective"]


def test_alt_texts_state_the_result(effective):
    increase, difference = planned_figures(*effective)
    assert "rope 9,728 (degrades from ~9,920); yarn ≥ 11,264" in increase.alt_text
    assert "at 9,728 to 11,264 the loss of yarn is lower than that of rope" in difference.alt_text


@pytest.mark.parametrize("count", [2, 14])
def test_names_at_line_ends_do_not_overlap(count):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    ends = [LineEnd(f"a_method_{at}", 10.0, 0.02 + 0.0001 * at, "black") for at in range(count)]
    with figure_style():
        figure, (axes,) = figure_with_names(9.2, [3.1], [end.name for end in ends], 0.9)
        axes.set(xlim=(0, 10), ylim=(-0.02, 0.45))
        name_line_ends(axes, ends)
        renderer = FigureCanvasAgg(figure).get_renderer()
        boxes = [text.get_window_extent(renderer) for text in axes.texts]
        words = [Text.get_window_extent(text, renderer) for text in axes.texts]
    assert len(boxes) == count
    for one, other in itertools.combinations(words, 2):
        assert not one.overlaps(other)
    width, height = figure.get_size_inches() * figure.dpi
    assert all(
        box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height for box in words
    )


@given(st.lists(st.floats(0, 1), min_size=1, max_size=14))
def test_spread_keeps_order_distance_and_bounds(levels):
    moved = spread(sorted(levels), 0.07)
    assert all(after - before >= 0.07 - 1e-9 for before, after in itertools.pairwise(moved))
    assert moved[0] >= -1e-9
    assert moved[-1] <= 1 + 1e-9
    if len(levels) == 1:
        assert moved == levels


def test_method_styles_of_fourteen_methods_differ():
    styles = method_styles(f"m{at}" for at in range(14))
    assert len({(s["color"], s["linestyle"]) for s in styles.values()}) == 14


def test_figures_of_each_kind_of_result(compared):
    kinds = [each.kind for each in planned_figures(compared, NO_BLOCKS)]
    assert set(kinds) == {"length", "forest"}
    titles = [each.title for each in planned_figures(compared, NO_BLOCKS)]
    assert "SmolLM2-135M: difference from rope at 512" in titles


def test_forest_fills_what_differs(compared):
    rows = compared[compared["name"].eq("exact_match") & compared["context_length"].eq(512)]
    rows = rows[rows["label"].eq("yarn") & rows["difference"].notna()].drop_duplicates("task")
    (axes,) = forest_figure(rows, method_styles(["yarn"])).axes
    points = next(each for each in axes.collections if hasattr(each, "get_sizes"))
    assert np.allclose(points.get_offsets()[:, 0], 100 * rows["difference"])
    filled = (points.get_facecolors()[:, :3] != 1).any(axis=1)
    assert [*filled] == [mark == "*" for mark in rows["mark"]]
    assert any(filled)
    assert not all(filled)


def test_forest_excludes_the_bundled_sample(compared):
    kinds = [each.kind for each in planned_figures(compared.assign(sample=True), NO_BLOCKS)]
    assert "forest" not in kinds


@pytest.mark.parametrize(
    "name", ["$\\alpha$", "a $x_1$ and $y^2$", "$$", "50$ to 60$", "$\\nothing$"]
)
def test_literal_text_is_never_read_as_mathematics(name, tmp_path):
    """Two dollar signs would make matplotlib parse what stands between them."""

    def draw():
        figure, grid = new_figure(3, 3)
        grid[0].plot([0, 1], label=literal_text(name))
        grid[0].set_title(literal_text(name))
        legend(figure, grid, "upper center")
        add_source_note(figure, name)
        return figure

    write_figure(draw, tmp_path / "f.svg")
    text = (tmp_path / "f.svg").read_text(encoding="utf-8")
    assert text.count(f">{name}<") == 3


def test_write_figure_svg_is_the_same_each_time(effective, tmp_path):
    for name in ("one.svg", "two.svg"):
        write_figure(lambda: drawn(effective, "effective"), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    with pytest.raises(ValueError, match=r"^figure: .*svg"):
        write_figure(lambda: None, tmp_path / "one.gif")


def test_figures_are_written_in_three_formats(effective, tmp_path):
    figures = write_figures(*effective, tmp_path)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {f"{name}.{kind}" for name in figures for kind in ("svg", "png", "pdf")}
    assert list(figures) == ["00-effective", "01-difference"]
    svg = (tmp_path / "00-effective.svg").read_text(encoding="utf-8")
    assert "Loss increase (nats/token)</text>" in svg  # text stays text


def test_svg_follows_dark_and_light(effective, tmp_path):
    write_figure(lambda: drawn(effective, "effective"), tmp_path / "f.svg")
    svg = (tmp_path / "f.svg").read_text(encoding="utf-8")
    style, _, rest = svg.partition("</style>")
    assert "@media screen and (prefers-color-scheme:dark)" in style
    written = {colour.upper() for colour in re.findall(r"#[0-9a-fA-F]{6}", rest)}
    assert written == set(), "a colour that does not follow"
    assert set(re.findall(r"var\((--c\d+)\)", rest)) <= set(re.findall(r"(--c\d+):", style))
    assert len(DARK) == len({*DARK.values()})


@pytest.mark.parametrize("colour", DARK)
def test_svg_dark_colours_have_contrast(colour):
    """Against the ground: 4.5 for text, 3 for lines, as WCAG asks; areas and grids are exempt."""
    least = {INK: 7.0, GREY: 4.5, EDGE: 3.0, GRID: 1.1, NATIVE_SHADE: 1.05, PAPER: 1.0}
    light_least = {"#56B4E9": 2.2, "#E69F00": 2.2, "#CC79A7": 2.8, EDGE: 3.0}
    assert contrast(DARK[colour], DARK[PAPER]) >= least.get(colour, 4.5)
    assert contrast(colour, PAPER) >= light_least.get(colour, min(least.get(colour, 3.0), 4.5))


def contrast(one, other):
    """The ratio of luminances of WCAG."""
    lights = []
    for colour in (one, other):
        parts = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
            for part in to_rgb(colour)
        ]
        lights.append(0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2] + 0.05)
    return max(lights) / min(lights)


def test_increase_has_axes_for_lines_near_the_margin():
    names = [f"m{at}" for at in range(12)]
    small = {name: noise_of(at) for at, name in enumerate(names)}
    compared, blocks = frames({"rope": "rope", **small}, ropes={name: {} for name in names},
                              filter="none", context_length=11264)  # fmt: skip
    rows = effective_rows(compared, blocks)
    rows = rows.assign(sample=False, group=False, method=lambda rows: rows["label"])
    frame = pd.concat([compared, rows], ignore_index=True)
    figures = [figure for figure in planned_figures(frame, blocks) if figure.kind == "effective"]
    upper, lower = figures[0].draw().axes
    named = [{text.get_text() for text in axes.texts} for axes in (upper, lower)]
    assert "rope" in named[0] - named[1]
    assert set(names) <= named[1] - named[0]
    assert lower.get_ylim()[1] == pytest.approx(0.15)
    assert len([line for line in lower.lines if line.get_label() in {"rope", *names}]) == 13


def noise_of(seed):
    return lambda blocks: np.random.default_rng(seed).normal(0.5, 1, len(blocks))


def test_figures_of_more_than_fourteen_methods_are_none(compared):
    many = [compared.assign(label=f"m{at}", run=at) for at in range(15)]
    many = pd.concat(many, ignore_index=True)
    assert [each.kind for each in planned_figures(many, NO_BLOCKS)] == []
