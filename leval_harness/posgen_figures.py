"""PosGen: validation loss by epoch (the paper's Figure 3), accuracy by position, and pairs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from leval_harness.drawing import DOTTED, legend, method_looks, picture, sign
from leval_harness.posgen import SUBTASKS, PosGen, places, title
from leval_harness.results import ResultsError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW = 5
"""With more seeds a band over all of them shows what two of them did."""

MOST_CURVES = 5
"""More curves on each other cannot be distinguished."""

Pairs = Sequence[tuple[str, str]]


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


def pairs_figure(read: PosGen) -> "Figure":
    """Accuracy past the trained length of every seed: a row per pair of encodings.

    The published number for a pair is a diamond.
    """
    tests, pairs, subtasks = read.tests, _pairs(read.tests), _subtasks(read.tests)
    figure, grid = picture(3.4 * len(subtasks) + 2.0, 0.28 * len(pairs) + 1.4, len(subtasks))
    looks = method_looks(title(trained, trained) for trained, _ in pairs)
    means = places(read).set_index(["subtask", "trained", "tested"])
    for axes, subtask in zip(grid, subtasks, strict=True):
        for at, (trained, tested) in enumerate(pairs):
            if (subtask, trained, tested) not in means.index:
                continue
            own = tests[(tests["subtask"] == subtask) & (tests["trained"] == trained)]
            own = own[own["tested"] == tested]
            look, mean = looks[title(trained, trained)], means.loc[(subtask, trained, tested)]
            style = {"color": look["color"], "alpha": 0.4, "ms": 4}
            label = f"trained with {look['label']}"
            for able, marker in ((True, "o"), (False, "x")):
                values = own.loc[own["learned"] == able, "past"]
                axes.plot(values, [at] * len(values), marker, label=label, **style)
            axes.plot([mean["past"]] * 2, [at - 0.35, at + 0.35], color=look["color"], linewidth=2)
            if pd.notna(mean["published"]):
                axes.plot(
                    [mean["published"]],
                    [at],
                    "D",
                    color="black",
                    ms=4,
                    mfc="none",
                    label="published",
                )
        axes.set_title(_title(tests, subtask))
        axes.set_yticks(range(len(pairs)), [title(*pair) for pair in pairs])
        axes.set_ylim(len(pairs) - 0.5, -0.5)
        axes.set_xlabel("Accuracy past the trained length, %")
        axes.tick_params(labelleft=axes is grid[0])
    legend(figure, grid, "upper center", columns=3)
    marks = "trained with → tested with; dots: seeds, x: not learned, lines: means"
    sign(figure, f"{tests['experiment'].iloc[0]} · {marks}", *_commands(tests))
    return figure


def _panels(read: PosGen, rows: pd.DataFrame, across: str, up: str) -> "Figure":
    """Mean over seeds with a band, a panel per sub-task.

    With many encodings there is a row of panels for each trained encoding.
    """
    tests, subtasks, lines = read.tests, _subtasks(rows), _rows(_pairs(rows))
    height = 3.4 if len(lines) == 1 else 1.7 * len(lines) + 1.4
    figure, grid = picture(3.2 * len(subtasks) + 0.6, height, len(subtasks), len(lines))
    looks = method_looks(title(*pair) for pairs in lines for pair in pairs)
    many = rows["seed"].nunique() > FEW
    for at, pairs in enumerate(lines):
        panels = grid[at * len(subtasks) : (at + 1) * len(subtasks)]
        for axes, subtask in zip(panels, subtasks, strict=True):
            for trained, tested in pairs:
                own = rows[(rows["subtask"] == subtask) & (rows["trained"] == trained)]
                own = own[own["tested"] == tested]
                if len(own):
                    _draw(axes, own, looks[title(trained, tested)], many)
            axes.set_visible(bool(axes.get_lines()))  # a panel without runs is left out
            axes.set_xlabel(across if at == len(lines) - 1 else "")
            if at == 0:
                axes.set_title(_title(tests, subtask))
        panels[0].set_ylabel(up)
    legend(figure, grid, "upper center", columns=4)
    seeds = sorted(rows["seed"].unique())
    listed = f"{len(seeds)} seeds" if many else f"seeds {', '.join(map(str, seeds))}"
    band = "half of the seeds" if many else "all seeds"
    arrow = "; trained with → tested with" if len(lines) > 1 else ""
    note = f"{tests['experiment'].iloc[0]} · mean over {listed}, bands: {band}{arrow}"
    sign(figure, note, *_commands(tests))
    return figure


def _draw(axes: Any, own: pd.DataFrame, look: dict[str, Any], many: bool) -> None:
    """The mean with a band over all seeds, or over the middle half of many."""
    at = own.groupby("x")["y"]
    mean, (low, high) = at.mean(), ((0.25, 0.75) if many else (0.0, 1.0))
    axes.plot(mean.index, mean, **{**look, "marker": ""}, linewidth=1.6)
    axes.fill_between(
        mean.index,
        at.quantile(low),
        at.quantile(high),
        color=look["color"],
        alpha=0.15,
        linewidth=0,
    )


def _subtasks(rows: pd.DataFrame) -> list[str]:
    """Sub-tasks that were run, in the paper's order."""
    return [subtask for subtask in SUBTASKS if rows["subtask"].eq(subtask).any()]


def _pairs(rows: pd.DataFrame) -> Pairs:
    return list(rows[["trained", "tested"]].drop_duplicates().itertuples(index=False, name=None))


def _rows(pairs: Pairs) -> list[Pairs]:
    """Pairs that share a row of panels: all if they are few, else those with one trained encoding.

    Encodings with a single test share a row. No row has more than `MOST_CURVES`.
    """
    if len(pairs) <= MOST_CURVES:
        return [pairs]
    by_trained: dict[str, list[tuple[str, str]]] = {}
    for pair in pairs:
        by_trained.setdefault(pair[0], []).append(pair)
    alone = [group[0] for group in by_trained.values() if len(group) == 1]
    groups = [*(group for group in by_trained.values() if len(group) > 1), alone]
    return [
        group[start : start + MOST_CURVES]
        for group in groups
        for start in range(0, len(group), MOST_CURVES)
    ]


def _title(tests: pd.DataFrame, subtask: str) -> str:
    learned = tests.loc[tests["subtask"] == subtask, "learned"].any()
    return SUBTASKS[subtask] + ("" if learned else " (not learned)")


def _commands(tests: pd.DataFrame) -> list[str]:
    return sorted(tests["command"].dropna().unique())
