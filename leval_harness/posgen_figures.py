"""PosGen: validation loss by epoch, the paper's Figure 3."""

from typing import TYPE_CHECKING

import pandas as pd

from leval_harness.drawing import legend, method_looks, picture, sign
from leval_harness.posgen import SUBTASKS, PosGen, title
from leval_harness.results import ResultsError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def loss_figure(read: PosGen) -> "Figure":
    """Validation loss of one experiment against epoch: a panel for each sub-task.

    Lines are means over seeds, bands hold all of them.

    Raises:
        ResultsError: a run's `metrics.csv` cannot be read.
    """
    own = read.tests[read.tests["trained"] == read.tests["tested"]]
    parts = []
    for run in own.to_dict("records"):
        file = run["folder"] / "metrics.csv"
        try:
            losses = pd.read_csv(file)[["epoch", "validation_loss"]].astype("float64")
        except (OSError, KeyError, ValueError) as error:
            raise ResultsError(f"{file}: no validation curve can be read ({error})") from None
        parts.append(
            losses.assign(subtask=run["subtask"], name=title(run["trained"], run["trained"]))
        )
    rows = pd.concat(parts)
    subtasks = [subtask for subtask in SUBTASKS if rows["subtask"].eq(subtask).any()]
    figure, grid = picture(3.2 * len(subtasks) + 0.6, 3.4, len(subtasks))
    looks = method_looks(rows["name"])
    for axes, subtask in zip(grid, subtasks, strict=True):
        for name, part in rows[rows["subtask"] == subtask].groupby("name", sort=False):
            at = part.groupby("epoch")["validation_loss"].agg(["mean", "min", "max"])
            look = {**looks[str(name)], "marker": ""}
            axes.plot(at.index, at["mean"], **look, linewidth=1.6)
            axes.fill_between(at.index, at["min"], at["max"], color=look["color"], alpha=0.15, lw=0)
        learned = own.loc[own["subtask"] == subtask, "learned"].any()
        axes.set_title(SUBTASKS[subtask] + ("" if learned else " (not learned)"))
        axes.set_xlabel("Epoch")
    grid[0].set_ylabel("Validation NLL (nats/token)")
    legend(figure, grid, "upper center", columns=4)
    seeds = ", ".join(map(str, sorted(own["seed"].unique())))
    note = f"{own['experiment'].iloc[0]} · mean over seeds {seeds}, bands: all seeds"
    sign(figure, note, *sorted(own["command"].dropna().unique()))
    return figure
