"""PosGen's finished runs: a frame, the paper's Table 1 beside ours, and its Figure 3."""

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
"""What the paper printed."""

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

PLACE = ["experiment", "subtask", "trained", "tested"]
PUBLISHED_MODULUS = 17


@dataclass(frozen=True, eq=False)
class PosGen:
    """Tests of some output folders of `posgen train`, see `TESTS`, and the settings of each."""

    tests: pd.DataFrame
    settings: dict[str, dict[str, Any]]


def load_posgen(*folders: Path) -> PosGen:
    """Every finished test of some output folders of `posgen train`.

    Raises:
        ResultsError: a folder has no finished run, or a file cannot be read.
    """
    rows: list[dict[str, Any]] = []
    settings = {}
    for folder in folders:
        files = sorted(folder.glob("*/*/seed-*/result.json"))
        if not files:
            raise ResultsError(f"{folder}: no finished PosGen run; start one with `posgen train`")
        settings[folder.name] = read_json_object(folder / "settings.json") or {}
        for file in files:
            tests_of_run = [file, *sorted(file.parent.glob("tested/*.json"))]
            rows += [_test(each, file.parent, folder.name) for each in tests_of_run]
    tests = pd.DataFrame({name: column([r[name] for r in rows], TESTS[name]) for name in rows[0]})
    own = tests[(tests["trained"] == tests["tested"]) & (tests["inside"] >= LEARNED)]
    tests["learned"] = tests["folder"].isin(own["folder"])
    order = {name: at for at, name in enumerate((*SUBTASKS, *ENCODINGS))}
    keys = tests.assign(crossed=tests["trained"] != tests["tested"])
    for name in ("subtask", "trained", "tested"):
        keys[name] = keys[name].map(order).fillna(len(order))
    by = ["experiment", "trained", "crossed", "tested", "subtask", "seed"]
    tests = tests.loc[keys.sort_values(by).index, list(TESTS)].reset_index(drop=True)
    return PosGen(tests, settings)


def _test(file: Path, run: Path, experiment: str) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
        test = found["test"]
        return {
            "experiment": experiment,
            "subtask": found["subtask"],
            "trained": found["encoding"],
            "tested": found.get("tested_with") or found["encoding"],
            "seed": int(found["seed"]),
            "inside": 100 * float(test["id_accuracy"]),
            "past": 100 * float(test["ood_accuracy"]),
            "command": found.get("command"),
            "folder": run,
        }
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ResultsError(f"{file}: no result of a PosGen run ({error!r})") from None


def title(trained: str, tested: str) -> str:
    """A pair of encodings as tables and figures print it."""
    names = (ENCODINGS[each].title if each in ENCODINGS else each for each in (trained, tested))
    return " → ".join(dict.fromkeys(names))


def places(read: PosGen) -> pd.DataFrame:
    """Means over the seeds that learned the rule, over all where none did; a row by `PLACE`.

    Columns: `seeds` and `learned` (of them), `inside`, `past`, its standard `deviation`, `rank`
    within an experiment and sub-task, and `published`, all in percent.
    """
    groups = read.tests.groupby(PLACE, sort=False)
    counted_ones = read.tests[read.tests["learned"] | ~groups["learned"].transform("any")]
    means = counted_ones.groupby(PLACE, sort=False).agg(
        inside=("inside", "mean"), past=("past", "mean"), deviation=("past", "std")
    )
    found = means.join(groups.agg(seeds=("seed", "nunique"), able=("learned", "sum")))
    found = found.rename(columns={"able": "learned"})
    ranked = found["past"].round(10).where(found["learned"] > 0)
    ranked = ranked.groupby(["experiment", "subtask"], sort=False)
    found["rank"] = ranked.rank("dense", ascending=False).where(ranked.transform("nunique") > 1)
    published = [published_of(Pair(*key[2:]), key[1]) for key in found.index]
    return found.assign(published=column(published, "float64").to_numpy()).reset_index()


def printed() -> dict[str, Any]:
    """Row of the paper's Table 1 -> mean and variance over 5 seeds of each sub-task, %."""
    table: dict[str, Any] = read_yaml(PRINTED)["table_1"]
    return table


def published_of(pair: Pair, subtask: str) -> float | None:
    """The paper's number for a pair in one of the two readings, %; None if it is in neither."""
    rows = dict(zip(PUBLISHED, printed().values(), strict=True))
    for reading in get_args(Reading):
        for name, each in published_pairs(reading).items():
            if each == pair and subtask in SUBTASKS:
                return float(rows[name][list(SUBTASKS).index(subtask)][0])
    return None


def details(read: PosGen) -> pd.DataFrame:
    """Every number at full precision: what CSV and JSON hold."""
    names = {"experiment": "Origin", "trained": "Encoding", "tested": "Tested with",
             "subtask": "Sub-task", "seeds": "Seeds", "inside": "ID", "past": "OOD",
             "deviation": "Deviation", "learned": "Learned", "published": "Published"}  # fmt: skip
    return places(read).drop(columns="rank").rename(columns=names)


def table_1(read: PosGen) -> Table:
    """Encodings down, sub-tasks across: accuracy past the training length, and within it."""
    found = places(read)
    some = found["learned"].lt(found["seeds"]) & found["learned"].gt(0)
    of = " (" + found["learned"].astype(str) + " of " + found["seeds"].astype(str) + " learned)"
    mark = of.where(some, "").mask(found["learned"] == 0, " (not learned)")
    spread = found["deviation"].map(" ± {:.2f}".format).where(found["deviation"].notna(), "")
    found["text"] = found["past"].map("{:.2f}".format) + spread + mark
    found["css"] = found["rank"].map({1: BEST, 2: SECOND}).fillna("")
    found["ID"] = found["inside"].map("{:.2f}".format)
    found["Model"] = [f"{name}: {_model(read.settings[name])}" for name in found["experiment"]]
    found["Encoding"] = [title(*pair) for pair in found[["trained", "tested"]].to_numpy()]
    rows = ["Model", "Encoding"]
    cells = found.groupby(rows, sort=False)["seeds"].agg(_range).rename("Seeds").to_frame()
    css = pd.DataFrame("", cells.index, ["Seeds"])
    for subtask, name in SUBTASKS.items():
        own = found[found["subtask"] == subtask].set_index(rows)
        cells[name], cells[f"{name} ID"] = own["text"], own["ID"]
        css[name], css[f"{name} ID"] = own["css"], ""
    cells, css = cells.fillna(NONE), css.fillna("")
    for name, numbers in printed().items():
        runs = [each for mean, variance in numbers for each in (f"{mean:.2f} ± {variance:.2f}", "")]
        at = (f"2 layers, width 512, modulus {PUBLISHED_MODULUS} (published)", name)
        cells.loc[at, :], css.loc[at, :] = ["5", *runs], QUIET
    notes = (
        "Accuracy on tokens past the training length, %, mean ± standard deviation over the seeds "
        f"that learned (at least {LEARNED:g}% within it); ID: on tokens within it",
        "Published: arXiv 2403.00071v2, Table 1, ± variance; not run here, not ranked",
        "Made by: " + "; ".join(sorted(read.tests["command"].dropna().unique())),
    )
    return Table("PosGen, out-of-distribution accuracy, %", cells, css, notes)


def _range(counts: pd.Series) -> str:
    return " to ".join(dict.fromkeys((f"{counts.min()}", f"{counts.max()}")))


def _model(settings: dict[str, Any]) -> str:
    """What was trained, in words."""
    if not settings:
        return "settings unknown"
    shape, data = settings["architecture"], settings["data"]
    kind, layers, width = (shape[name] for name in ("kind", "layers", "hidden"))
    taught = f"{data.get('train', 10_000):,} sequences, {settings['epochs']} epochs"
    modulus = data.get("modulus", PUBLISHED_MODULUS)
    return f"{kind}, {layers} layers, width {width}, modulus {modulus}, {taught}"


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
        name = title(run["trained"], run["trained"])
        parts.append(losses.assign(subtask=run["subtask"], name=name))
    rows = pd.concat(parts)
    subtasks = [subtask for subtask in SUBTASKS if rows["subtask"].eq(subtask).any()]
    figure, grid = new_figure(3.2 * len(subtasks) + 0.6, 3.4, len(subtasks))
    styles = method_styles(rows["name"])
    for axes, subtask in zip(grid, subtasks, strict=True):
        for name, part in rows[rows["subtask"] == subtask].groupby("name", sort=False):
            at = part.groupby("epoch")["validation_loss"].agg(["mean", "min", "max"])
            style = {**styles[str(name)], "marker": ""}
            axes.plot(at.index, at["mean"], **style, linewidth=1.6)
            axes.fill_between(
                at.index, at["min"], at["max"], color=style["color"], alpha=0.15, lw=0
            )
        learned = own.loc[own["subtask"] == subtask, "learned"].any()
        axes.set_title(SUBTASKS[subtask] + ("" if learned else " (not learned)"))
        axes.set_xlabel("Epoch")
    grid[0].set_ylabel("Validation NLL (nats/token)")
    legend(figure, grid, "upper center", columns=4)
    seeds = ", ".join(map(str, sorted(own["seed"].unique())))
    note = f"{own['experiment'].iloc[0]} · mean over seeds {seeds}, bands: all seeds"
    add_source_note(figure, note, *sorted(own["command"].dropna().unique()))
    return figure
