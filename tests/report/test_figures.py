"""Figures show the numbers of the compared frame."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from block_frames import frames

from leval_harness.report.drawing import (
    RC,
    add_source_note,
    legend,
    literal_text,
    method_styles,
    new_figure,
    write_figure,
)
from leval_harness.report.effective_context import compared_frame, effective_rows
from leval_harness.report.figures import (
    effective_figure,
    forest_figure,
    planned_figures,
    write_figures,
)
from leval_harness.results.load import load_results

mpl.use("agg")


@pytest.fixture(scope="module")
def compared(sweep):
    return compared_frame(load_results(sweep))


@pytest.fixture(scope="module")
def effective():
    return effective_rows(*frames({"rope": "rope", "yarn": "yarn"})).assign(command="c")


def drawn_points(axes):
    """Points of every curve with markers, by label."""
    return {container.get_label(): container.lines[0].get_xydata() for container in axes.containers}


def test_effective_context_draws_the_intervals_of_the_table(effective):
    figure = effective_figure(effective, method_styles(["rope", "yarn"]))
    top, below = figure.axes
    against = effective[effective["baseline"].eq("reference")]
    for label, points in drawn_points(top).items():
        rows = against[against["label"].eq(label) & against["metric"].eq("difference")]
        assert np.allclose(points[:, 1], rows["difference"])
        container = next(c for c in top.containers if c.get_label() == label)
        (bars,) = container.lines[2]
        ends = np.array([segment[:, 1] for segment in bars.get_segments()])
        assert np.allclose(ends[:, 0], rows["diff_low"])
        assert np.allclose(ends[:, 1], rows["diff_high"])
        middles = (rows["start"] + rows["end"]) / 2
        assert (abs(points[:, 0] - middles) < (rows["end"] - rows["start"]) / 2).all()
    assert set(drawn_points(below)) == {"yarn against rope"}


def test_no_two_pairs_of_methods_look_the_same():
    methods = {
        "rope": "rope",
        "yarn": "yarn",
        "resonance_yarn": lambda blocks: 0.9 * blocks["yarn"],
    }
    rows = effective_rows(*frames(methods)).assign(command="c")
    below = effective_figure(rows, method_styles(methods)).axes[1]
    lines = {each.get_label(): each.lines[0] for each in below.containers}
    assert len(lines) == 3
    assert len({(line.get_color(), line.get_marker()) for line in lines.values()}) == 3


def test_up_is_better_and_says_so_with_the_numbers_of_the_table(effective):
    for axes in effective_figure(effective, method_styles(["rope", "yarn"])).axes:
        assert axes.yaxis_inverted()  # a higher loss lies lower
        assert "up is better" in axes.get_ylabel()
        assert axes.get_yscale() == "linear"
        assert axes.get_xscale() == "linear"


def test_the_collapse_is_to_be_seen(effective):
    axes = effective_figure(effective, method_styles(["rope", "yarn"])).axes[0]
    worst, best = axes.get_ylim()
    fall = drawn_points(axes)["rope"][-1, 1] - drawn_points(axes)["rope"][0, 1]
    assert fall / (worst - best) > 0.5


def test_there_is_a_figure_for_each_kind_of_result(compared):
    kinds = [each.kind for each in planned_figures(compared)]
    assert set(kinds) == {"length", "forest"}
    titles = [each.title for each in planned_figures(compared)]
    assert "SmolLM2-135M: difference to rope at 512" in titles


def test_a_forest_fills_what_differs(compared):
    rows = compared[compared["name"].eq("exact_match") & compared["context_length"].eq(512)]
    rows = rows[rows["label"].eq("yarn") & rows["difference"].notna()].drop_duplicates("task")
    (axes,) = forest_figure(rows, method_styles(["yarn"])).axes
    points = next(each for each in axes.collections if hasattr(each, "get_sizes"))
    assert np.allclose(points.get_offsets()[:, 0], 100 * rows["difference"])
    filled = (points.get_facecolors()[:, :3] != 1).any(axis=1)
    assert [*filled] == [mark == "*" for mark in rows["mark"]]
    assert any(filled)
    assert not all(filled)


def test_the_bundled_sample_gets_no_figure_of_differences(compared):
    kinds = [each.kind for each in planned_figures(compared.assign(sample=True))]
    assert "forest" not in kinds


@pytest.mark.parametrize(
    "name", ["$\\alpha$", "a $x_1$ and $y^2$", "$$", "50$ to 60$", "$\\nothing$"]
)
def test_names_are_never_read_as_mathematics(name, tmp_path):
    """Two dollar signs would make matplotlib parse what stands between them."""

    def draw():
        figure, grid = new_figure(3, 3)
        grid[0].plot([0, 1], label=literal_text(name))
        grid[0].set_title(literal_text(name))
        legend(figure, grid, "upper center")
        add_source_note(figure, name)
        return figure

    with mpl.rc_context({**RC, "svg.fonttype": "none"}):
        write_figure(draw, tmp_path / "f.svg")
    text = (tmp_path / "f.svg").read_text(encoding="utf-8")
    assert text.count(f">{name}<") == 3


def test_an_svg_is_the_same_each_time(effective, tmp_path):
    styles = method_styles(["rope", "yarn"])
    for name in ("one.svg", "two.svg"):
        write_figure(lambda: effective_figure(effective, styles), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    with pytest.raises(ValueError, match=r"^figure: .*svg"):
        write_figure(lambda: None, tmp_path / "one.gif")


def test_figures_are_written_as_svg_and_png(real_runs, tmp_path):
    titles = write_figures(compared_frame(load_results(real_runs)), tmp_path)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {f"{name}.{kind}" for name in titles for kind in ("svg", "png")}
    assert next(iter(titles)) == "00-effective"


def test_many_methods_get_no_figure(compared):
    many = [compared.assign(label=f"m{at}", run=at) for at in range(15)]
    many = pd.concat(many, ignore_index=True)
    assert [each.kind for each in planned_figures(many)] == []
