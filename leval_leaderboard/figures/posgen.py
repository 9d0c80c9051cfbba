"""PosGen's figures: a panel a sub-task, a curve an encoding.

The paper's Figure 3 is validation loss against epoch; the other is accuracy against position.
"""

import csv
import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from leval_leaderboard.figures.style import RC, literal, method_colours, new_figure, save, sign
from leval_leaderboard.results import ResultsError
from leval_leaderboard.tables.posgen import ENCODINGS, SUBTASKS, Experiment, PosGenRun

Curve = dict[float, list[float]]
"""x -> one value a seed, x ascending."""


def loss_figure(experiment: Experiment) -> Any:
    """Validation loss of one experiment against epoch.

    Returns:
        A matplotlib `Figure`.

    Raises:
        ResultsError: a run's `metrics.csv` is missing or holds no curve.
    """

    def curve(runs: Sequence[PosGenRun]) -> Curve:
        return loss_curves([run.folder / "metrics.csv" for run in runs])

    figure, grid = _panels(experiment, curve)
    for axes in grid:
        axes.set_xlabel("Epoch")
    grid[0].set_ylabel("Validation loss, nats a token")
    return figure


def position_figure(experiment: Experiment) -> Any:
    """Accuracy of one experiment's test against the number's place in the sequence.

    Sub-tasks that no encoding learned are left out, unless there is no other: what was learned of
    every second number only is no curve.

    Returns:
        A matplotlib `Figure`.

    Raises:
        ResultsError: a result holds no accuracies by position.
    """
    if learned := _learned(experiment):
        runs = tuple(run for run in experiment.runs if run.subtask in learned)
        experiment = dataclasses.replace(experiment, runs=runs)
    data = experiment.settings.get("data", {})
    first = data.get("far", 1) + data.get("near", 3)

    def curve(runs: Sequence[PosGenRun]) -> Curve:
        return position_curve(runs, first)

    figure, grid = _panels(experiment, curve)
    for axes in grid:
        axes.axvline(data.get("train_length", 64), color="#888888", linewidth=0.9, linestyle=":")
        axes.set_xlabel("Position (dotted: trained length)")
        axes.set_ylim(0, 102)
    grid[0].set_ylabel("Accuracy, %")
    return figure


def _learned(experiment: Experiment) -> set[str]:
    """Sub-tasks that at least one encoding learned."""
    return {subtask for (subtask, _), place in experiment.places.items() if place.learned}


def _panels(
    experiment: Experiment, curve: Callable[[Sequence[PosGenRun]], Curve]
) -> tuple[Any, list[Any]]:
    """The figure and its axes: mean over seeds, a band from the lowest to the highest seed."""
    shown = [s for s in SUBTASKS if any(run.subtask == s for run in experiment.runs)]
    looks = method_colours(name for name, _ in ENCODINGS.values())
    learned = _learned(experiment)
    figure, made = new_figure(3.2 * len(shown) + 0.6, 3.4, len(shown))
    grid = made if len(shown) > 1 else [made]
    for axes, subtask in zip(grid, shown, strict=True):
        for encoding, (name, _) in ENCODINGS.items():
            runs = [r for r in experiment.runs if (r.subtask, r.encoding) == (subtask, encoding)]
            if runs:
                _draw(axes, curve(runs), name, looks[name])
        axes.set_title(SUBTASKS[subtask] + " (not learned)" * (subtask not in learned), loc="left")
    lines = {line.get_label(): line for axes in grid for line in axes.get_lines()}
    figure.legend(
        handles=list(lines.values()), fontsize=8, frameon=False, loc="outside upper center", ncols=4
    )
    seeds = sorted({run.seed for run in experiment.runs})
    note = f"{experiment.name} · mean over seeds {', '.join(map(str, seeds))}, bands: all seeds"
    sign(figure, note, "", *sorted({run.command for run in experiment.runs}))
    return figure, grid


def _draw(axes: Any, curve: Curve, name: str, look: Any) -> None:
    means = [statistics.mean(values) for values in curve.values()]
    axes.plot(
        list(curve), means, color=look.colour, linestyle=look.line, label=literal(name),
        linewidth=1.6,
    )  # fmt: skip
    low, high = ([how(values) for values in curve.values()] for how in (min, max))
    axes.fill_between(list(curve), low, high, color=look.colour, alpha=0.15, linewidth=0)


def loss_curves(files: Sequence[Path]) -> Curve:
    """Epoch -> validation losses of the runs that have it, epochs ascending.

    Raises:
        ResultsError: a file is missing, or a loss in it is no number.
    """
    losses: dict[float, list[float]] = defaultdict(list)
    for file in files:
        try:
            with file.open(newline="", encoding="utf-8") as stream:
                rows = [
                    (float(r["epoch"]), float(r["validation_loss"])) for r in csv.DictReader(stream)
                ]
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ResultsError(f"{file}: no validation curve can be read ({error!r})") from error
        if not rows or not all(math.isfinite(value) for row in rows for value in row):
            raise ResultsError(f"{file}: empty, or a loss in it is not finite")
        for epoch, loss in rows:
            losses[epoch].append(loss)
    return dict(sorted(losses.items()))


def position_curve(runs: Sequence[PosGenRun], first: int) -> Curve:
    """Position -> accuracies in percent of the runs; the first one stands at `first`.

    Raises:
        ResultsError: a run has none, or they have different lengths.
    """
    lengths = {len(run.by_position) for run in runs}
    if lengths == {0} or len(lengths) > 1:
        raise ResultsError(
            f"{runs[0].folder.parent}: results without accuracies by position, or of different "
            "lengths; train these runs again"
        )
    columns = zip(*(run.by_position for run in runs), strict=True)
    return {float(at): list(values) for at, values in enumerate(columns, first)}


def write_figure(experiment: Experiment, target: Path, draw: Callable[[Experiment], Any]) -> None:
    """Draw into a file; its ending says the format (svg, pdf, png).

    Raises:
        ResultsError: another ending, or no curves.
        OSError: the file cannot be written.
    """
    import matplotlib as mpl

    if target.suffix not in (".svg", ".pdf", ".png"):
        raise ResultsError(f"figure: {target.name} must end in .svg, .pdf or .png")
    with mpl.rc_context(RC):
        figure = draw(experiment)
        target.parent.mkdir(parents=True, exist_ok=True)
        save(figure, target)
