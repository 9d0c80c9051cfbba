"""PosGen's figures: a panel a sub-task, a curve an encoding.

The paper's Figure 3 is validation loss against epoch; the other is accuracy against position.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from leval_leaderboard.figures.style import legend, method_looks, new_figure, sign
from leval_leaderboard.results.posgen import (
    SUBTASKS,
    Curve,
    Experiment,
    PosGenRun,
    loss_curve,
    position_curve,
)
from leval_leaderboard.tables.posgen import published_of
from leval_tasks.posgen.encodings import ENCODINGS


def loss_figure(experiment: Experiment) -> Any:
    """Validation loss of one experiment against epoch, as a `Figure`; errors of `loss_curve`."""
    figure, grid = _panels(experiment, loss_curve)
    for axes in grid:
        axes.set_xlabel("Epoch")
    grid[0].set_ylabel("Validation loss, nats a token")
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
        axes.set_xlabel("Position (dotted: trained length)")
        axes.set_ylim(0, 102)
    grid[0].set_ylabel("Accuracy, %")
    return figure


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
    """The figure and its axes: mean over seeds, a band from the lowest to the highest seed."""
    results = [run.result for run in experiment.runs]
    subtasks = [each for each in SUBTASKS if any(result.subtask == each for result in results)]
    looks = method_looks(pair.title for pair in experiment.pairs)
    figure, grid = new_figure(3.2 * len(subtasks) + 0.6, 3.4, len(subtasks))
    for axes, subtask in zip(grid, subtasks, strict=True):
        for pair in experiment.pairs:
            if runs := experiment.runs_of(subtask, pair):
                _draw(axes, curve(runs), pair.title, looks[pair.title])
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
