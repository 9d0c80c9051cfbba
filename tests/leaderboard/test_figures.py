"""Figures by the artists that they draw, never by pixels."""

import dataclasses
import hashlib
import itertools
import json

import fixture_results as make
import pytest

from leval_harness.analysis import analyse
from leval_harness.old_figures import write_figures
from leval_harness.old_figures.scores import difference_figure
from leval_harness.old_figures.style import method_looks
from leval_harness.old_figures.write import planned_figures
from leval_harness.old_results import load_results


@pytest.fixture(scope="module")
def analysis(sweep):
    return analyse(load_results(sweep))


@pytest.fixture(scope="module")
def drawn(analysis):
    looks = method_looks(analysis.titles)
    return {figure.title: figure.draw(looks) for figure in planned_figures(analysis)}


def test_curves_show_the_values_of_the_frame(analysis, drawn):
    title = "SmolLM2-135M: Coursera, exact match by context length"
    axes = drawn[title].axes[0]
    frame = analysis.frame()
    lines = {line.get_label(): line for line in axes.get_lines() if line.get_label()[0] != "_"}
    assert set(lines) == {"none", "linear", "yarn", "resonance_yarn"}
    for method, line in lines.items():
        rows = frame[
            (frame["label"] == method)
            & (frame["task"] == "leval_closed_coursera")
            & (frame["metric"] == "exact_match")
        ].sort_values("context_length")
        assert list(line.get_xdata()) == [4096, 8192]
        assert list(line.get_ydata()) == pytest.approx(list(100 * rows["value"]))
    assert len(axes.collections) == 4  # one band a method
    assert "tokens" in drawn[title].axes[-1].get_xlabel()
    below = drawn[title].get_supxlabel()
    assert "SmolLM2-135M" in below
    assert "leval-harness sweep" in below
    assert "data:" in below


def test_perplexity_axis_says_which_way_is_better(drawn):
    (figure,) = [f for title, f in drawn.items() if "token perplexity" in title]
    assert "lower is better" in figure.axes[0].get_ylabel()


def test_forest_shows_each_difference_and_fills_the_significant(analysis, drawn):
    figure = drawn["SmolLM2-135M: difference to none at 8K"]
    axes = figure.axes[0]
    markers = [line for line in axes.get_lines() if line.get_linestyle() == "None"]
    frame = analysis.frame()
    rows = frame[frame["difference"].notna() & (frame["context_length"] == 8192) & frame["primary"]]
    assert sorted(line.get_xdata()[0] for line in markers) == pytest.approx(
        sorted(100 * rows["difference"])
    )
    filled = sum(line.get_markerfacecolor() != "white" for line in markers)
    assert filled == (rows["mark"] == "*").sum() > 0


@pytest.fixture
def two_methods(tmp_path):
    """A sweep of two methods that left what their RoPE settings do."""
    lengths = {"none": [6.3, 60.2, 700.0, 9000.0], "yarn": [6.3, 60.2, 900.0, 18000.0]}
    for at, (method, wavelengths) in enumerate(lengths.items()):
        for length in (4096, 8192):
            samples = {"leval_closed_gsm": make.closed_samples("leval_closed_gsm", 0.4, 1)}
            shown = wavelengths if length == 8192 else [1.0, 2.0, 3.0, 4.0]
            make.write_cell(
                tmp_path / "r",
                f"{at}{length}",
                samples,
                method=method,
                context_length=length,
                features=make.rope_features(shown, length),
            )
    return tmp_path / "r", lengths


def rope_pictures(folder):
    analysis = analyse(load_results(folder))
    figures, looks = planned_figures(analysis), method_looks(analysis.titles)
    return [(figure.title, figure.draw(looks)) for figure in figures if figure.kind == "rope"]


def test_wavelengths_and_gaps_of_the_methods_are_shown(two_methods):
    folder, lengths = two_methods
    ((title, figure),) = rope_pictures(folder)
    assert title == "SmolLM2-135M: wavelengths and feature gaps of the methods"
    left, right = figure.axes
    lines = {line.get_label(): line for line in left.get_lines() if line.get_label()[0] != "_"}
    assert {m: list(line.get_ydata()) for m, line in lines.items()} == lengths
    assert "below 4,096, up to 8,192" in right.get_title(loc="left")  # what was run: twice L
    assert list(right.get_lines()[0].get_ydata()) == [0.02, 0.021, 0.022, 0.023]
    assert "8,192 tokens" in figure.get_supxlabel()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("700.0", "1e999"),
        lambda text: text.replace("700.0", '"700"'),
        lambda text: text.replace("700.0", "-700.0"),
        lambda text: text.replace("[6.3", "[" * 2000),
        lambda text: text.replace("4096", "true"),
        lambda text: text.replace("700.0", "701.0"),
    ],
)
@pytest.mark.parametrize("promised", [True, False])
def test_damaged_features_are_left_out(two_methods, damage, promised):
    folder, lengths = two_methods
    path = folder / "08192" / "rope_features.json"
    text = damage(path.read_text())
    path.write_text(text)
    if promised:  # somebody has written a marker that fits
        done = json.loads((folder / "08192" / "done.json").read_text())
        done["files"][path.name] = hashlib.sha256(text.encode()).hexdigest()
        (folder / "08192" / "done.json").write_text(json.dumps(done))
    ((_, figure),) = rope_pictures(folder)
    lines = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].get_lines()}
    assert lines["yarn"] == lengths["yarn"]
    right = promised and "701.0" in text
    assert lines["none"] == ([6.3, 60.2, 701.0, 9000.0] if right else [1.0, 2.0, 3.0, 4.0])


def test_methods_keep_a_look_and_no_two_share_one():
    names = [f"m{at:02d}" for at in range(14)]
    looks = method_looks(names)
    for one, other in itertools.combinations(names, 2):
        assert {**looks[one], "label": other} != looks[other]
    assert method_looks(reversed(names)) == looks


def test_names_are_never_read_as_mathematics(analysis):
    entries = [
        dataclasses.replace(entry, label=r"$\frac{1}{0")
        for entry in analysis.entries
        if entry.difference and entry.run.context_length == 8192
    ]
    figure = difference_figure(entries, "$x", method_looks([entries[0].label]))
    figure.canvas.draw()
    texts = [text.get_text() for text in figure.findobj(lambda each: hasattr(each, "get_text"))]
    assert any(r"\frac{1}{0" in text for text in texts)


def test_files_are_written_as_svg_and_png_under_our_own_names(analysis, tmp_path):
    figures = write_figures(analysis, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"{name}.{kind}" for name in figures for kind in ("svg", "png")}
    assert len(figures) == 9


def test_differences_stand_below_curves_that_lie_on_each_other(analysis, drawn):
    (figure,) = [f for title, f in drawn.items() if "token perplexity" in title]
    upper, lower = figure.axes
    compared = {
        (entry.label, entry.length): entry.difference.difference
        for entry in analysis.entries
        if entry.difference and entry.score.family == "token_perplexity"
    }
    lines = {line.get_color(): line.get_label() for line in upper.get_lines()}
    shown = {
        (lines[line.get_color()], length): value
        for line in lower.get_lines()
        if line.get_color() in lines
        for length, value in zip(line.get_xdata(), line.get_ydata(), strict=True)
    }
    assert shown == pytest.approx(compared)
    assert lower.get_ylabel() == "difference to the baseline, NLL (nats/token)"


def test_results_of_many_models_get_no_figures(analysis, tmp_path, monkeypatch):
    monkeypatch.setattr("leval_harness.old_figures.write.MOST_FIGURES", 1)
    assert write_figures(analysis, tmp_path / "figures") == {}
