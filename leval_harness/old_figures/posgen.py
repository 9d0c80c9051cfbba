"""PosGen: validation loss by epoch (the paper's Figure 3), accuracy by position, and pairs."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from leval_harness.analysis.entries import grouped
from leval_harness.old_figures.style import DOTTED, Picture, method_looks
from leval_harness.old_results.posgen import (
    SUBTASKS,
    Curve,
    Experiment,
    PosGenRun,
    loss_curve,
    position_curve,
)
from leval_harness.old_tables.published import published_of
from leval_tasks.metadata import Subtask
from leval_tasks.posgen.encodings import ENCODINGS, Pair

MOST_CURVES = 5
"""More curves on each other cannot be distinguished."""

FEW = 5
"""With more seeds a band over all of them shows what two of them did."""

LEGEND_WIDTH = 2.9
"""Inches for a legend beside the panels."""


def loss_figure(experiment: Experiment) -> Any:
    """Validation loss of one experiment against epoch, as a `Figure`; errors of `loss_curve`."""
    return _panels(experiment, loss_curve, "Epoch", "Validation NLL (nats/token)")


def position_figure(experiment: Experiment) -> Any:
    """Accuracy of one experiment's test against the number's place in the sequence, as a `Figure`.

    Models that did not learn the rule are left out, unless there is no other. Errors of
    `position_curve`.
    """
    learned = [experiment.learned_runs(subtask, pair) for subtask, pair in experiment.places]
    experiment = replace(experiment, runs=tuple(chain(*learned)) or experiment.runs)
    data = experiment.settings.get("data", {})
    first = data.get("far", 1) + data.get("near", 3)
    figure = _panels(
        experiment,
        lambda runs: position_curve(runs, first),
        "Position (dotted: trained length)",
        "Accuracy, %",
    )
    for axes in figure.axes:
        axes.axvline(data.get("train_length", 64), color="#888888", **DOTTED)
        axes.set_ylim(0, 102)
    return figure


def pairs_figure(experiment: Experiment) -> Any:
    """Accuracy past the trained length of every seed, as a `Figure`: a row per pair of encodings.

    The published number for a pair is a diamond.
    """
    subtasks, pairs = _subtasks(experiment), experiment.pairs
    height = 0.28 * len(pairs) + 1.4
    picture = Picture(3.4 * len(subtasks) + 2.0, height, len(subtasks))
    grid = picture.grid
    looks = method_looks(ENCODINGS[pair.trained].title for pair in pairs)
    for axes, subtask in zip(grid, subtasks, strict=True):
        for at, pair in enumerate(pairs):
            trained = ENCODINGS[pair.trained].title
            if experiment.runs_of(subtask, pair):
                _draw_seeds(axes, at, experiment, subtask, pair, looks[trained]["color"])
        axes.set_title(_title(experiment, subtask), loc="left")
        axes.set_yticks(range(len(pairs)), [pair.title for pair in pairs])
        axes.set_ylim(len(pairs) - 0.5, -0.5)
        axes.set_xlabel("Accuracy past the trained length, %")
        axes.tick_params(labelleft=axes is grid[0])
    picture.legend(grid, "upper center", columns=3)
    counts = sorted({place.seeds for place in experiment.places.values()})
    seeds = " to ".join(dict.fromkeys((f"{counts[0]}", f"{counts[-1]}")))
    crosses = any(0 < place.learned < place.seeds for place in experiment.places.values())
    marks = f"dots: seeds ({seeds}), {'x: not learned, ' if crosses else ''}lines: means"
    note = f"{experiment.name} · trained with → tested with; {marks}"
    picture.sign(note, sorted({run.result.command for run in experiment.runs}))
    return picture.figure


def _draw_seeds(
    axes: Any, at: int, experiment: Experiment, subtask: Subtask, pair: Pair, color: str
) -> None:
    """One row: seeds as dots, or crosses if not learned, their mean and the published number."""
    learned = experiment.learned_runs(subtask, pair)
    values, others = (
        [
            run.result.test.ood_accuracy
            for run in experiment.runs_of(subtask, pair)
            if (run in learned) == able
        ]
        for able in (True, False)
    )
    style = {"color": color, "alpha": 0.4, "ms": 4}
    label = f"trained with {ENCODINGS[pair.trained].title}"
    axes.plot(values, [at] * len(values), "o", label=label, **style)
    axes.plot(others, [at] * len(others), "x", **style)
    mean = statistics.mean(values or others)
    axes.plot([mean] * 2, [at - 0.35, at + 0.35], color=color, linewidth=2)
    if (published := published_of(pair, subtask)) is not None:
        axes.plot([published], [at], "D", color="black", ms=4, mfc="none", label="published")


def _panels(
    experiment: Experiment, curve: Callable[[Sequence[PosGenRun]], Curve], across: str, up: str
) -> Any:
    """Mean over seeds with a band, a panel per sub-task.

    With many encodings there is a row of panels for each trained encoding, with its own legend.
    """
    subtasks, rows = _subtasks(experiment), _rows(experiment.pairs)
    width, height = 3.2 * len(subtasks) + 0.6, 3.4
    looks = method_looks(pair.title for pair in experiment.pairs)
    if len(rows) > 1:  # a tested encoding looks the same in every row
        width, height = width + LEGEND_WIDTH, 1.7 * len(rows) + 1.4
        tested = method_looks(ENCODINGS[pair.tested].title for pair in experiment.pairs)
        looks = {
            pair.title: {**tested[ENCODINGS[pair.tested].title], "label": pair.title}
            for pair in experiment.pairs
        }
    picture = Picture(width, height, len(subtasks), len(rows))
    grid = picture.grid
    seeds = {run.result.seed for run in experiment.runs}
    lowest: dict[Subtask, Any] = {}
    for at, pairs in enumerate(rows):
        row = grid[at * len(subtasks) : (at + 1) * len(subtasks)]
        for axes, subtask in zip(row, subtasks, strict=True):
            for pair in pairs:
                if runs := experiment.runs_of(subtask, pair):
                    _draw(axes, curve(runs), looks[pair.title], len(seeds) > FEW)
            axes.set_visible(bool(axes.get_lines()))  # a panel without runs is left out
            if axes.get_visible():
                lowest[subtask] = axes
            if at == 0:
                axes.set_title(_title(experiment, subtask), loc="left")
        row[0].set_ylabel(up)
        if len(rows) > 1:
            _legend_beside(row)
    for axes in lowest.values():
        axes.set_xlabel(across)
    if len(rows) == 1:
        picture.legend(grid, "upper center", columns=4)
    many = len(seeds) > FEW
    listed = f"{len(seeds)} seeds" if many else f"seeds {', '.join(map(str, sorted(seeds)))}"
    band = "half of the seeds" if many else "all seeds"
    arrow = "; trained with → tested with" if len(rows) > 1 else ""
    note = f"{experiment.name} · mean over {listed}, bands: {band}{arrow}"
    picture.sign(note, sorted({run.result.command for run in experiment.runs}))
    return picture.figure


def _subtasks(experiment: Experiment) -> list[Subtask]:
    """Sub-tasks that were run, in the paper's order."""
    found = {run.result.subtask for run in experiment.runs}
    return [subtask for subtask in SUBTASKS if subtask in found]


def _title(experiment: Experiment, subtask: Subtask) -> str:
    return SUBTASKS[subtask] + ("" if subtask in experiment.learned else " (not learned)")


def _rows(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Pairs that share a row of panels: all if they are few, else those with one trained encoding.

    Encodings with a single test share a row. No row has more than `MOST_CURVES`.
    """
    if len(pairs) <= MOST_CURVES:
        return [list(pairs)]
    groups = grouped(pairs, lambda pair: pair.trained).values()
    alone = [group[0] for group in groups if len(group) == 1]
    return [
        group[start : start + MOST_CURVES]
        for group in (*(group for group in groups if len(group) > 1), alone)
        for start in range(0, len(group), MOST_CURVES)
    ]


def _legend_beside(row: Sequence[Any]) -> None:
    """A legend to the right of a row of panels, of the curves in any of them."""
    lines = {line.get_label(): line for axes in row for line in axes.get_lines()}
    row[-1].legend(
        handles=list(lines.values()), fontsize=8, frameon=False,
        loc="center left", bbox_to_anchor=(1.02, 0.5),
    )  # fmt: skip


def _draw(axes: Any, curve: Curve, look: Mapping[str, Any], many: bool) -> None:
    """The mean with a band over all seeds, or over the middle half of many."""
    places, values = list(curve), list(curve.values())
    mean = [statistics.mean(each) for each in values]
    axes.plot(places, mean, **{**look, "marker": ""}, linewidth=1.6)
    low, high = zip(
        *(np.percentile(v, (25, 75) if many else (0, 100)) for v in values), strict=True
    )
    axes.fill_between(places, low, high, color=look["color"], alpha=0.15, linewidth=0)
