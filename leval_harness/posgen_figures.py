"""PosGen: validation loss by epoch (the paper's Figure 3), accuracy by position."""

from typing import TYPE_CHECKING

import pandas as pd

from leval_harness.drawing import DOTTED, legend, method_looks, picture, sign
from leval_harness.posgen import SUBTASKS, PosGen, title
from leval_harness.results import ResultsError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW = 5
"""With more seeds a band over all of them shows what two of them did."""


def loss_figure(read: PosGen) -> "Figure":
    """Validation loss of one experiment against epoch.

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
        names = {name: run[name] for name in ("subtask", "trained", "tested", "seed", "learned")}
        parts.append(losses.set_axis(["x", "y"], axis=1).assign(**names))
    return _panels(read, pd.concat(parts), "Epoch", "Validation NLL (nats/token)")


def position_figure(read: PosGen) -> "Figure":
    """Accuracy of one experiment's test against the number's place in the sequence.

    Models that did not learn the rule are left out, unless there is no other.

    Raises:
        ResultsError: results without accuracies by position, or of different lengths.
    """
    tests = read.tests[read.tests["learned"] | ~read.tests["learned"].any()]
    lengths = tests["by_position"].map(len)
    if lengths.eq(0).any() or lengths.groupby(tests["subtask"]).nunique().gt(1).any():
        raise ResultsError(
            "results without accuracies by position, or of different lengths: train them again"
        )
    data = next(iter(read.settings.values())).get("data") or {}
    rows = tests.explode("by_position").rename(columns={"by_position": "y"})
    first = data.get("far", 1) + data.get("near", 3)
    rows["x"] = first + rows.groupby(level=0).cumcount()
    rows["y"] = rows["y"].astype("float64")
    figure = _panels(read, rows, "Position (dotted: trained length)", "Accuracy, %")
    for axes in figure.axes:
        axes.axvline(data.get("train_length", 64), color="#888888", **DOTTED)
        axes.set_ylim(0, 102)
    return figure


def _panels(read: PosGen, rows: pd.DataFrame, across: str, up: str) -> "Figure":
    """A panel per sub-task: mean over seeds, and a band over all of them, or over half of many."""
    tests = read.tests
    subtasks = [subtask for subtask in SUBTASKS if rows["subtask"].eq(subtask).any()]
    figure, grid = picture(3.2 * len(subtasks) + 0.6, 3.4, len(subtasks))
    names = [title(*pair) for pair in rows[["trained", "tested"]].to_numpy()]
    looks, rows = method_looks(names), rows.assign(name=names)
    seeds = sorted(rows["seed"].unique())
    many = len(seeds) > FEW
    for axes, subtask in zip(grid, subtasks, strict=True):
        for name, own in rows[rows["subtask"] == subtask].groupby("name", sort=False):
            at, look = own.groupby("x")["y"], looks[str(name)]
            mean, ends = (
                at.mean(),
                (at.quantile(0.25 if many else 0), at.quantile(0.75 if many else 1)),
            )
            axes.plot(mean.index, mean, **{**look, "marker": ""}, linewidth=1.6)
            axes.fill_between(mean.index, *ends, color=look["color"], alpha=0.15, linewidth=0)
        learned = tests.loc[tests["subtask"] == subtask, "learned"].any()
        axes.set_title(SUBTASKS[subtask] + ("" if learned else " (not learned)"))
        axes.set_xlabel(across)
    grid[0].set_ylabel(up)
    legend(figure, grid, "upper center", columns=4)
    listed = f"{len(seeds)} seeds" if many else f"seeds {', '.join(map(str, seeds))}"
    band = "half of the seeds" if many else "all seeds"
    note = f"{tests['experiment'].iloc[0]} · mean over {listed}, bands: {band}"
    sign(figure, note, *sorted(tests["command"].dropna().unique()))
    return figure
