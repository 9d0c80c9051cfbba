"""PosGen's figures: a panel a sub-task, a curve an encoding.

The paper's Figure 3 is validation loss against epoch; the other is accuracy against position.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from leval_harness.figures.style import legend, method_looks, new_figure, sign
from leval_harness.results.posgen import (
    SUBTASKS,
    Curve,
    Experiment,
    PosGenRun,
    loss_curve,
    position_curve,
)
from leval_harness.tables.published import published_of
from leval_tasks.posgen.encodings import ENCODINGS, Pair

MOST_CURVES = 5
"""More on each other cannot be told apart."""

FEW = 5
"""Of more seeds a band over all of them says what two of them did."""

BESIDE = 2.9
"""Inches for a legend beside the panels."""


def loss_figure(experiment: Experiment) -> Any:
    """Validation loss of one experiment against epoch, as a `Figure`; errors of `loss_curve`."""
    figure, grid = _panels(experiment, loss_curve)
    _label(grid, "Epoch", "Validation loss, nats a token")
    return figure


def position_figure(experiment: Experiment) -> Any:
    """Accuracy of one experiment's test against the number's place in the sequence.

    Models that did not learn are left out, unless there is no other: what was learned of every
    second number only is no curve. Errors of `position_curve`.
    """
    learned = [experiment.learned_runs(subtask, pair) for subtask, pair in experiment.places]
    experiment = replace(experiment, runs=tuple(chain(*learned)) or experiment.runs)
    data = experiment.settings.get("data", {})
    first = data.get("far", 1) + data.get("near", 3)
    figure, grid = _panels(experiment, lambda runs: position_curve(runs, first))
    for axes in grid:
        axes.axvline(data.get("train_length", 64), color="#888888", linewidth=0.9, linestyle=":")
        axes.set_ylim(0, 102)
    _label(grid, "Position (dotted: trained length)", "Accuracy, %")
    return figure


def _label(grid: Sequence[Any], across: str, up: str) -> None:
    """Labels where a row begins and a column ends."""
    lowest = {axes.get_subplotspec().colspan.start: axes for axes in grid if axes.get_visible()}
    for axes in grid:
        if axes in lowest.values():
            axes.set_xlabel(across)
        if axes.get_subplotspec().is_first_col():
            axes.set_ylabel(up)


def pairs_figure(experiment: Experiment) -> Any:
    """Accuracy past the trained length of every seed: a row a pair, a panel a sub-task.

    The published number that a pair is a reading of is a diamond.
    """
    subtasks = [each for each in SUBTASKS if any(key[0] == each for key in experiment.places)]
    pairs = experiment.pairs
    height = 0.28 * len(pairs) + 1.4
    figure, grid = new_figure(3.4 * len(subtasks) + 2.0, height, len(subtasks))
    looks = method_looks(ENCODINGS[pair.trained].title for pair in pairs)
    for axes, subtask in zip(grid, subtasks, strict=True):
        for at, pair in enumerate(pairs):
            trained = ENCODINGS[pair.trained].title
            runs = experiment.runs_of(subtask, pair)
            if not runs:
                continue
            learned = experiment.learned_runs(subtask, pair)
            values, others = (
                [run.result.test.ood_accuracy for run in runs if (run in learned) == able]
                for able in (True, False)
            )
            color = looks[trained]["color"]
            label = f"trained with {trained}"
            axes.plot(values, [at] * len(values), "o", color=color, alpha=0.4, ms=4, label=label)
            axes.plot(others, [at] * len(others), "x", color=color, alpha=0.4, ms=4)
            mean = statistics.mean(values or others)
            axes.plot([mean] * 2, [at - 0.35, at + 0.35], color=color, linewidth=2)
            if (published := published_of(pair, subtask)) is not None:
                axes.plot(
                    [published], [at], "D", color="black", ms=4, mfc="none", label="published"
                )
        unlearned = "" if subtask in experiment.learned else " (not learned)"
        axes.set_title(SUBTASKS[subtask] + unlearned, loc="left")
        axes.set_yticks(range(len(pairs)), [pair.title for pair in pairs])
        axes.set_ylim(len(pairs) - 0.5, -0.5)
        axes.set_xlabel("Accuracy past the trained length, %")
        axes.tick_params(labelleft=axes is grid[0])
    legend(figure, grid, "upper center", columns=3)
    counts = sorted({place.seeds for place in experiment.places.values()})
    seeds = " to ".join(dict.fromkeys((f"{counts[0]}", f"{counts[-1]}")))
    crosses = any(0 < place.learned < place.seeds for place in experiment.places.values())
    marks = f"dots: seeds ({seeds}), {'x: not learned, ' if crosses else ''}lines: means"
    note = f"{experiment.name} · trained with → tested with; {marks}"
    sign(figure, note, sorted({run.result.command for run in experiment.runs}))
    return figure


def _panels(
    experiment: Experiment, curve: Callable[[Sequence[PosGenRun]], Curve]
) -> tuple[Any, list[Any]]:
    """The figure and its axes: mean over seeds and a band around it, a panel a sub-task.

    Of many encodings a row of panels for each that was trained with, which has a legend beside it.
    """
    results = [run.result for run in experiment.runs]
    subtasks = [each for each in SUBTASKS if any(result.subtask == each for result in results)]
    rows = _rows(experiment.pairs)
    looks = method_looks(pair.title for pair in experiment.pairs)
    if len(rows) > 1:  # what was tested with the same looks the same in every row
        tested = method_looks(ENCODINGS[pair.tested].title for pair in experiment.pairs)
        looks = {pair.title: tested[ENCODINGS[pair.tested].title] for pair in experiment.pairs}
    seeds = {result.seed for result in results}
    wide, high = 3.2 * len(subtasks) + 0.6, 3.4
    if len(rows) > 1:
        wide, high = wide + BESIDE, 1.7 * len(rows) + 1.4
    figure, grid = new_figure(wide, high, len(subtasks), len(rows))
    panels = iter(grid)
    for at, pairs in enumerate(rows):
        for subtask in subtasks:
            axes = next(panels)
            for pair in pairs:
                if runs := experiment.runs_of(subtask, pair):
                    _draw(axes, curve(runs), pair.title, looks[pair.title], len(seeds) > FEW)
            axes.set_visible(bool(axes.get_lines()))  # what was not run has no empty panel
            if at == 0:
                unlearned = "" if subtask in experiment.learned else " (not learned)"
                axes.set_title(SUBTASKS[subtask] + unlearned, loc="left")
        if len(rows) > 1:
            _legend_beside([*grid[at * len(subtasks) : (at + 1) * len(subtasks)]])
    if len(rows) == 1:
        legend(figure, grid, "upper center", columns=4)
    band = "half of the seeds" if len(seeds) > FEW else "all seeds"
    arrow = "; trained with → tested with" if len(rows) > 1 else ""
    note = f"{experiment.name} · mean over seeds {ranges(seeds)}, bands: {band}{arrow}"
    sign(figure, note, sorted({result.command for result in results}))
    return figure, grid


def _rows(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """What is drawn together: all where they are few, else what was trained with the same.

    Encodings with a single test share a row. No row has more than can be told apart.
    """
    if len(pairs) <= MOST_CURVES:
        return [list(pairs)]
    trained: dict[str, list[Pair]] = {}
    for pair in pairs:
        trained.setdefault(pair.trained, []).append(pair)
    alone = [group[0] for group in trained.values() if len(group) == 1]
    groups = [*(group for group in trained.values() if len(group) > 1), alone]
    return [
        group[start : start + MOST_CURVES]
        for group in groups
        for start in range(0, len(group), MOST_CURVES)
    ]


def _legend_beside(row: Sequence[Any]) -> None:
    """A legend to the right of a row of panels, of the curves in any of them."""
    lines = {line.get_label(): line for axes in row for line in axes.get_lines()}
    row[-1].legend(
        handles=list(lines.values()), fontsize=8, frameon=False,
        loc="center left", bbox_to_anchor=(1.02, 0.5),
    )  # fmt: skip


def ranges(numbers: Iterable[int]) -> str:
    """Whole numbers in words: `0, 1, 2`, and of more than three in a row `7 to 16, 18`."""
    rows: list[list[int]] = []
    for number in sorted(set(numbers)):
        if rows and number == rows[-1][-1] + 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    return ", ".join(
        f"{row[0]} to {row[-1]}" if len(row) > 3 else ", ".join(map(str, row)) for row in rows
    )


def _draw(axes: Any, curve: Curve, name: str, look: Mapping[str, Any], many: bool) -> None:
    """The mean, and a band over all seeds; of many over the middle half of them."""
    values = list(curve.values())
    mean = [statistics.mean(each) for each in values]
    axes.plot(list(curve), mean, **{**look, "marker": ""}, label=name, linewidth=1.6)
    ends = [
        _quartiles(each) if many and len(each) > 1 else (min(each), max(each)) for each in values
    ]
    low, high = zip(*ends, strict=True)
    axes.fill_between(list(curve), low, high, color=look["color"], alpha=0.15, linewidth=0)


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high
