"""The paper's Figure 3: validation loss against epoch, a panel a sub-task, a curve an encoding."""

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leval_leaderboard.figures.style import literal, method_colours, sign
from leval_leaderboard.results import ResultsError
from leval_leaderboard.tables.posgen import ENCODINGS, SUBTASKS, Experiment


def loss_figure(experiment: Experiment) -> Any:
    """Curves of one experiment: mean over seeds, the band from the lowest to the highest seed.

    Returns:
        A matplotlib `Figure`.

    Raises:
        ResultsError: a run's `metrics.csv` is missing or holds no curve.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [s for s in SUBTASKS if any(run.subtask == s for run in experiment.runs)]
    looks = method_colours(name for name, _ in ENCODINGS.values())
    figure = Figure(figsize=(3.2 * len(panels) + 0.6, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, subtask in zip(grid, panels, strict=True):
        for encoding, (name, _) in ENCODINGS.items():
            files = [
                run.folder / "metrics.csv"
                for run in experiment.runs
                if (run.subtask, run.encoding) == (subtask, encoding)
            ]
            if files:
                _curve(axes, loss_curves(files), name, looks[name])
        axes.set_title(SUBTASKS[subtask], loc="left")
        axes.set_xlabel("Epoch")
        axes.grid(visible=True, color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    grid[0].set_ylabel("Validation loss, nats a token")
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, frameon=False, loc="outside upper center", ncols=4)
    seeds = sorted({run.seed for run in experiment.runs})
    note = f"{experiment.name} · mean over seeds {', '.join(map(str, seeds))}, bands: all seeds"
    commands = sorted({run.command for run in experiment.runs})
    sign(figure, note, "", *commands)
    return figure


def _curve(axes: Any, curve: dict[float, list[float]], name: str, look: Any) -> None:
    epochs = list(curve)
    means = [statistics.mean(values) for values in curve.values()]
    axes.plot(
        epochs, means, color=look.colour, linestyle=look.line, label=literal(name), linewidth=1.6
    )
    low, high = ([how(values) for values in curve.values()] for how in (min, max))
    axes.fill_between(epochs, low, high, color=look.colour, alpha=0.15, linewidth=0)


def loss_curves(files: Sequence[Path]) -> dict[float, list[float]]:
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


def write_loss_figure(experiment: Experiment, target: Path) -> None:
    """Draw into a file; its ending says the format (svg, pdf, png).

    Raises:
        ResultsError: another ending, or no curves.
        OSError: the file cannot be written.
    """
    import matplotlib as mpl

    if target.suffix not in (".svg", ".pdf", ".png"):
        raise ResultsError(f"figure: {target.name} must end in .svg, .pdf or .png")
    with mpl.rc_context({"svg.hashsalt": "leval-harness", "font.size": 9, "axes.titlesize": 10}):
        figure = loss_figure(experiment)
        target.parent.mkdir(parents=True, exist_ok=True)
        dated = {"metadata": {"Date": None}} if target.suffix == ".svg" else {}
        figure.savefig(target, dpi=200, **dated)
