"""PosGen's finished runs: a frame, the paper's Table 1 beside these results, and its Figure 3."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pandas as pd

from leval_harness.report.drawing import add_source_note, legend, method_styles, new_figure
from leval_harness.report.table import BEST, NONE, QUIET, SECOND, Table
from leval_harness.results.load import ResultsError, column
from leval_tasks.posgen.encodings import ENCODINGS, PUBLISHED, Pair, Reading, published_pairs
from resonance_vllm.common.files import read_json_object
from resonance_vllm.common.yaml_files import read_yaml

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PRINTED = Path(__file__).with_name("published.yaml")
"""Numbers that the paper printed."""

LEARNED = 95.0
"""Accuracy within the training length, %, from which on a rule counts as learned."""

SUBTASKS = {"recursive": "Recursive", "cot": "CoT", "semi_recursive": "Semi-recursive"}
"""The sub-tasks in the paper's order, as it prints them."""

TESTS = {
    **dict.fromkeys(("experiment", "subtask", "trained", "tested"), "text"),
    "seed": "int64",
    **dict.fromkeys(("inside", "past"), "float64"),
    "learned": "bool",
    "command": "text",
    "folder": "object",
}
"""Columns of the frame of tests and their types.

experiment: name of the output folder. trained, tested: encodings. inside, past: accuracy on tokens
within and past the training length, %. learned: whether the model learned the rule, under the
encoding of training. folder: of the model.
"""

MEAN_KEYS = ["experiment", "subtask", "trained", "tested"]
PUBLISHED_MODULUS = 17


@dataclass(frozen=True, eq=False)
class PosGen:
    """Tests of some output folders of `posgen train`.

    Attributes:
        tests: a row for each test; see `TESTS`.
        settings: experiment -> its settings.
    """

    tests: pd.DataFrame
    settings: dict[str, dict[str, Any]]


def load_posgen(*folders: Path) -> PosGen:
    """Return every finished test of some output folders of `posgen train`.

    Raises:
        ResultsError: a folder has no finished run, or a file cannot be read.
    """
    rows: list[dict[str, Any]] = []
    settings: dict[str, dict[str, Any]] = {}
    for folder in folders:
        files = sorted(folder.glob("*/*/seed-*/result.json"))
        if not files:
            raise ResultsError(f"{folder}: no finished PosGen run; start one with `posgen train`")
        settings[folder.name] = read_json_object(folder / "settings.json") or {}
        for file in files:
            tests_of_run = [file, *sorted(file.parent.glob("tested/*.json"))]
            rows += [_test(test_file, file.parent, folder.name) for test_file in tests_of_run]
    tests = pd.DataFrame(
        {name: column([row[name] for row in rows], TESTS[name]) for name in rows[0]}
    )
    # a model that is tested with another encoding was trained, and learned, with its own
    learned = tests[(tests["trained"] == tests["tested"]) & (tests["inside"] >= LEARNED)]
    tests["learned"] = tests["folder"].isin(learned["folder"])
    tests = tests.loc[_paper_order(tests), list(TESTS)].reset_index(drop=True)
    return PosGen(tests, settings)


def _paper_order(tests: pd.DataFrame) -> pd.Index:
    """Return the index in the paper's order: own encodings first, others in alphabetical order."""
    order = {name: position for position, name in enumerate((*SUBTASKS, *ENCODINGS))}
    keys = tests.assign(crossed=tests["trained"] != tests["tested"])
    for name in ("subtask", "trained", "tested"):
        keys[name] = keys[name].map(order).fillna(len(order))
    by = ["experiment", "trained", "crossed", "tested", "subtask", "seed"]
    return keys.sort_values(by).index


def _test(file: Path, run: Path, experiment: str) -> dict[str, Any]:
    """Return the row of a test.

    Args:
        file: its result.
        run: folder of the model.
        experiment: name of the output folder.

    Raises:
        ResultsError: the file cannot be read, or is not a result.
    """
    try:
        result = json.loads(file.read_bytes())
        test = result["test"]
        return {
            "experiment": experiment,
            "subtask": result["subtask"],
            "trained": result["encoding"],
            "tested": result.get("tested_with") or result["encoding"],
            "seed": int(result["seed"]),
            "inside": 100 * float(test["id_accuracy"]),
            "past": 100 * float(test["ood_accuracy"]),
            "command": result.get("command"),
            "folder": run,
        }
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ResultsError(f"{file}: not a result of a PosGen run ({error!r})") from None


def title(trained: str, tested: str) -> str:
    """Return a pair of encodings as tables and figures print it."""
    titles = {name: encoding.title for name, encoding in ENCODINGS.items()}
    names = [titles.get(name, name) for name in (trained, tested)]
    return " → ".join(dict.fromkeys(names))


def seed_means(results: PosGen) -> pd.DataFrame:
    """Return means over the seeds that learned the rule, over all where none did.

    There is a row for each experiment, sub-task, and pair of encodings.

    Columns: `seeds` and `learned` (of them), `inside`, `past`, its standard `deviation`, `rank`
    within an experiment and sub-task, and `published`, all in percent.
    """
    tests = results.tests
    groups = tests.groupby(MEAN_KEYS, sort=False)
    # seeds that did not learn the rule say nothing on how far it extends
    is_counted = tests["learned"] | ~groups["learned"].transform("any")
    means = (
        tests[is_counted]
        .groupby(MEAN_KEYS, sort=False)
        .agg(inside=("inside", "mean"), past=("past", "mean"), deviation=("past", "std"))
    )
    means["seeds"] = groups["seed"].nunique()
    means["learned"] = groups["learned"].sum()
    accuracy = means["past"].round(10).where(means["learned"] > 0)
    rivals = accuracy.groupby(["experiment", "subtask"], sort=False)
    ranks = rivals.rank("dense", ascending=False)
    means["rank"] = ranks.where(rivals.transform("nunique") > 1)
    published = [
        published_of(Pair(trained, tested), subtask) for _, subtask, trained, tested in means.index
    ]
    means["published"] = column(published, "float64").to_numpy()
    return means.reset_index()


def printed() -> dict[str, Any]:
    """Return row of the paper's Table 1 -> mean and variance over 5 seeds of each sub-task, %."""
    table: dict[str, Any] = read_yaml(PRINTED)["table_1"]
    return table


def published_of(pair: Pair, subtask: str) -> float | None:
    """Return the paper's number for a pair in one of two readings, %; None if it is in neither."""
    rows = dict(zip(PUBLISHED, printed().values(), strict=True))
    for reading in get_args(Reading):
        for name, published_pair in published_pairs(reading).items():
            if published_pair == pair and subtask in SUBTASKS:
                return float(rows[name][list(SUBTASKS).index(subtask)][0])
    return None


def details(results: PosGen) -> pd.DataFrame:
    """Return every number at full precision, as in CSV and JSON."""
    names = {"experiment": "Origin", "trained": "Encoding", "tested": "Tested with",
             "subtask": "Sub-task", "seeds": "Seeds", "inside": "ID", "past": "OOD",
             "deviation": "Deviation", "learned": "Learned", "published": "Published"}  # fmt: skip
    return seed_means(results).drop(columns="rank").rename(columns=names)


def table_1(results: PosGen) -> Table:
    """Return the table: encodings as rows, sub-tasks as columns, accuracy past and within training."""
    means = seed_means(results)
    means["text"] = _accuracy_texts(means)
    means["css"] = means["rank"].map({1: BEST, 2: SECOND}).fillna("")
    means["ID"] = means["inside"].map("{:.2f}".format)
    means["Model"] = [f"{name}: {_model(results.settings[name])}" for name in means["experiment"]]
    means["Encoding"] = [title(*pair) for pair in means[["trained", "tested"]].to_numpy()]
    row_keys = ["Model", "Encoding"]
    cells = means.groupby(row_keys, sort=False)["seeds"].agg(_range).rename("Seeds").to_frame()
    css = pd.DataFrame("", cells.index, ["Seeds"])
    for subtask, name in SUBTASKS.items():
        of_subtask = means[means["subtask"] == subtask].set_index(row_keys)
        cells[name] = of_subtask["text"]
        cells[f"{name} ID"] = of_subtask["ID"]
        css[name] = of_subtask["css"]
        css[f"{name} ID"] = ""
    cells = cells.fillna(NONE)
    css = css.fillna("")
    model = f"2 layers, width 512, modulus {PUBLISHED_MODULUS} (published)"
    for encoding, numbers in printed().items():
        texts = ["5"]  # seeds
        for mean, variance in numbers:
            texts += [f"{mean:.2f} ± {variance:.2f}", ""]  # within the length none are printed
        cells.loc[(model, encoding), :] = texts
        css.loc[(model, encoding), :] = QUIET
    notes = (
        "Accuracy on tokens past the training length, %, mean ± standard deviation over the seeds "
        f"that learned (at least {LEARNED:g}% within it); ID: on tokens within it",
        "Published: arXiv 2403.00071v2, Table 1, ± variance; not run here, not ranked",
        "Made by: " + "; ".join(sorted(results.tests["command"].dropna().unique())),
    )
    return Table("PosGen, out-of-distribution accuracy, %", cells, css, notes)


def _accuracy_texts(means: pd.DataFrame) -> pd.Series:
    """Return accuracy past the training length with its deviation, and seeds that did not learn."""
    texts = []
    for row in means.itertuples():
        text = f"{row.past:.2f}"
        if pd.notna(row.deviation):
            text += f" ± {row.deviation:.2f}"
        if row.learned == 0:
            text += " (not learned)"
        elif row.learned < row.seeds:
            text += f" ({row.learned} of {row.seeds} learned)"
        texts.append(text)
    return pd.Series(texts, means.index)


def _range(counts: pd.Series) -> str:
    """Return the least and the largest of some counts, one number where they are equal."""
    return " to ".join(dict.fromkeys((f"{counts.min()}", f"{counts.max()}")))


def _model(settings: dict[str, Any]) -> str:
    """Return the trained model and its data in words."""
    if not settings:
        return "settings unknown"
    shape = settings["architecture"]
    data = settings["data"]
    modulus = data.get("modulus", PUBLISHED_MODULUS)
    sequences = data.get("train", 10_000)
    return (
        f"{shape['kind']}, {shape['layers']} layers, width {shape['hidden']}, modulus {modulus}, "
        f"{sequences:,} sequences, {settings['epochs']} epochs"
    )


def loss_figure(results: PosGen) -> "Figure":
    """Draw the validation loss of one experiment against the epoch, a panel for each sub-task.

    Lines are means over seeds, bands hold all of them.

    Raises:
        ResultsError: a run's `metrics.csv` cannot be read.
    """
    own = results.tests[results.tests["trained"] == results.tests["tested"]]
    parts = []
    for run in own.to_dict("records"):
        file = run["folder"] / "metrics.csv"
        try:
            losses = pd.read_csv(file)[["epoch", "validation_loss"]].astype("float64")
        except (OSError, KeyError, ValueError) as error:
            raise ResultsError(f"{file}: no validation curve can be read ({error})") from None
        name = title(run["trained"], run["trained"])
        parts.append(losses.assign(subtask=run["subtask"], name=name))
    rows = pd.concat(parts)
    subtasks = [subtask for subtask in SUBTASKS if rows["subtask"].eq(subtask).any()]
    figure, grid = new_figure(3.2 * len(subtasks) + 0.6, 3.4, len(subtasks))
    styles = method_styles(rows["name"])
    for axes, subtask in zip(grid, subtasks, strict=True):
        for name, part in rows[rows["subtask"] == subtask].groupby("name", sort=False):
            by_epoch = part.groupby("epoch")["validation_loss"].agg(["mean", "min", "max"])
            style = {**styles[str(name)], "marker": ""}
            axes.plot(by_epoch.index, by_epoch["mean"], **style, linewidth=1.6)
            axes.fill_between(
                by_epoch.index,
                by_epoch["min"],
                by_epoch["max"],
                color=style["color"],
                alpha=0.15,
                lw=0,
            )
        learned = own.loc[own["subtask"] == subtask, "learned"].any()
        suffix = "" if learned else " (not learned)"
        axes.set_title(SUBTASKS[subtask] + suffix)
        axes.set_xlabel("Epoch")
    grid[0].set_ylabel("Validation NLL (nats/token)")
    legend(figure, grid, "upper center", columns=4)
    seeds = ", ".join(map(str, sorted(own["seed"].unique())))
    note = f"{own['experiment'].iloc[0]} · mean over seeds {seeds}, bands: all seeds"
    add_source_note(figure, note, *sorted(own["command"].dropna().unique()))
    return figure
