"""PosGen's figures: a panel a sub-task, a curve an encoding.

The paper's Figure 3 is validation loss against epoch; the other is accuracy against position.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from leval_leaderboard.figures.style import legend, method_looks, new_figure, sign
from leval_leaderboard.results.posgen import (
    ENCODINGS,
    SUBTASKS,
    Curve,
    Experiment,
    PosGenRun,
    loss_curve,
    position_curve,
)


def loss_figure(experiment: Experiment) -> Any:
    """Validation loss of one experiment against epoch, as a `Figure`; errors of `loss_curve`."""
    figure, grid = _panels(experiment, loss_curve)
    for axes in grid:
        axes.set_xlabel("Epoch")
    grid[0].set_ylabel("Validation loss, nats a token")
    return figure


def position_figure(experiment: Experiment) -> Any:
    """Accuracy of one experiment's test against the number's place in the sequence.

    Sub-tasks that no encoding learned are left out, unless there is no other: what was learned of
    every second number only is no curve. Errors of `position_curve`.
    """
    if learned := experiment.learned:
        runs = tuple(run for run in experiment.runs if run.result.subtask in learned)
        experiment = replace(experiment, runs=runs)
    data = experiment.settings.get("data", {})
    first = data.get("far", 1) + data.get("near", 3)
    figure, grid = _panels(experiment, lambda runs: position_curve(runs, first))
    for axes in grid:
        axes.axvline(data.get("train_length", 64), color="#888888", linewidth=0.9, linestyle=":")
        axes.set_xlabel("Position (dotted: trained length)")
        axes.set_ylim(0, 102)
    grid[0].set_ylabel("Accuracy, %")
    return figure


def _panels(
    experiment: Experiment, curve: Callable[[Sequence[PosGenRun]], Curve]
) -> tuple[Any, list[Any]]:
    """The figure and its axes: mean over seeds, a band from the lowest to the highest seed."""
    results = [run.result for run in experiment.runs]
    subtasks = [each for each in SUBTASKS if any(result.subtask == each for result in results)]
    looks = method_looks(ENCODINGS.values())
    figure, grid = new_figure(3.2 * len(subtasks) + 0.6, 3.4, len(subtasks))
    for axes, subtask in zip(grid, subtasks, strict=True):
        for encoding, name in ENCODINGS.items():
            if runs := experiment.runs_of(subtask, encoding):
                _draw(axes, curve(runs), name, looks[name])
        unlearned = "" if subtask in experiment.learned else " (not learned)"
        axes.set_title(SUBTASKS[subtask] + unlearned, loc="left")
    legend(figure, grid, "upper center", columns=4)
    seeds = ", ".join(str(seed) for seed in sorted({result.seed for result in results}))
    note = f"{experiment.name} · mean over seeds {seeds}, bands: all seeds"
    sign(figure, note, sorted({result.command for result in results}))
    return figure, grid


def _draw(axes: Any, curve: Curve, name: str, look: Mapping[str, Any]) -> None:
    low, mean, high = (
        [of(values) for values in curve.values()] for of in (min, statistics.mean, max)
    )
    axes.plot(list(curve), mean, **{**look, "marker": ""}, label=name, linewidth=1.6)
    axes.fill_between(list(curve), low, high, color=look["color"], alpha=0.15, linewidth=0)
