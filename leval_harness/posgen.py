"""PosGen's finished runs as a frame, and what is computed from it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from leval_harness.results import ResultsError, column
from leval_harness.yaml_files import read_yaml
from leval_tasks.posgen.encodings import ENCODINGS, PUBLISHED, Pair, Reading, published_pairs
from resonance_vllm.files import read_object

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
        settings[folder.name] = read_object(folder / "settings.json") or {}
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


def modulus_of(settings: dict[str, Any]) -> Any:
    """Of an experiment's settings; the paper's where they do not say."""
    return (settings.get("data") or {}).get("modulus", PUBLISHED_MODULUS)


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
