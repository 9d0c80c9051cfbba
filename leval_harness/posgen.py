"""PosGen's finished runs as a frame, and what is computed from it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pandas as pd
from scipy import stats

from leval_harness.results import ResultsError, column
from leval_harness.yaml_files import read_yaml
from leval_tasks.posgen.encodings import ENCODINGS, PUBLISHED, Pair, Reading, published_pairs
from resonance_vllm.errors import SettingError

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
    "seconds": "float64",
    "versions": "object",
    "folder": "object",
}
"""Columns of the frame of tests and their types.

experiment: name of the output folder. trained, tested: encodings. inside, past: accuracy on tokens
within and past the training length, %. learned: whether the model learned the rule, under the
encoding of training. folder: of the model.
"""

PLACE = ["experiment", "subtask", "trained", "tested"]
COMPARED = ["Experiment", "Sub-task", "Method", "Baseline", "Seeds", "Method %", "Baseline %",
            "Difference", "95% low", "95% high"]  # fmt: skip
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
        known = folder / "settings.json"
        settings[folder.name] = _read(known) if known.is_file() else {}
        for file in files:
            own = _read(file)
            rows.append(_test(own, file, folder.name))
            for other in sorted(file.parent.glob("tested/*.json")):
                test, weights = _read(other), (own.get("files") or {}).get("model.safetensors")
                # a test of weights that were trained anew since is not one of this model
                if test.get("weights") in (None, weights) or weights is None:
                    rows.append(_test(test, other, folder.name) | {"folder": file.parent})
    tests = pd.DataFrame({name: column([r[name] for r in rows], TESTS[name]) for name in rows[0]})
    own = tests[(tests["trained"] == tests["tested"]) & (tests["inside"] >= LEARNED)]
    able = own[["folder"]].drop_duplicates().assign(learned=True)
    tests = tests.merge(able, on="folder", how="left", validate="many_to_one")
    tests["learned"] = tests["learned"].eq(True)
    order = {name: at for at, name in enumerate((*SUBTASKS, *ENCODINGS))}
    keys = tests.assign(crossed=tests["trained"] != tests["tested"])
    for name in ("subtask", "trained", "tested"):
        keys[name] = keys[name].map(order).fillna(len(order))
    by = ["experiment", "trained", "crossed", "tested", "subtask", "seed"]
    tests = tests.loc[keys.sort_values(by).index, list(TESTS)].reset_index(drop=True)
    return PosGen(tests, settings)


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ResultsError(f"{file}: cannot be read ({error})") from None
    if not isinstance(content, dict):
        raise ResultsError(f"{file}: expected an object, found {type(content).__name__}")
    return content


def _test(found: dict[str, Any], file: Path, experiment: str) -> dict[str, Any]:
    try:
        test = found["test"]
        return {
            "experiment": experiment,
            "subtask": found["subtask"],
            "trained": found["encoding"],
            "tested": found.get("tested_with") or found["encoding"],
            "seed": int(found.get("seed", 0)),
            "inside": 100 * float(test["id_accuracy"]),
            "past": 100 * float(test["ood_accuracy"]),
            "command": found.get("command"),
            "seconds": found.get("seconds"),
            "versions": found.get("versions") or {},
            "folder": file.parent,
        }
    except (KeyError, TypeError, ValueError) as error:
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


def by_seed(read: PosGen, pairs: Sequence[tuple[Pair, Pair]]) -> pd.DataFrame:
    """Methods minus baselines past the trained length, over seeds that both learned.

    Args:
        read: with tests of all of them.
        pairs: (method, baseline).

    Returns:
        a row for each experiment, sub-task and pair with two seeds in common; `COMPARED`.

    Raises:
        SettingError: there is no test of a pair.
        ResultsError: no pair has two seeds in common.
    """
    there = {Pair(*pair) for pair in read.tests[["trained", "tested"]].to_numpy()}
    for pair in {each for both in pairs for each in both} - there:
        had = ", ".join(sorted(":".join(each) for each in there))
        raise SettingError(f"no test of {':'.join(pair)}; there are: {had}")
    able = read.tests[read.tests["learned"]]
    wide = able.set_index([*PLACE[:2], "seed", "trained", "tested"])["past"]
    wide = wide.unstack(["trained", "tested"]).reindex(columns=pd.MultiIndex.from_tuples(there))
    rows = []
    for method, baseline in pairs:
        both = wide[[method, baseline]].dropna()
        for (experiment, subtask), part in both.groupby(["experiment", "subtask"], sort=False):
            change = part[method] - part[baseline]
            if len(change) > 1:
                names = [experiment, SUBTASKS[subtask], title(*method), title(*baseline)]
                mean, half = change.mean(), stats.t.ppf(0.975, len(change) - 1) * change.sem()
                means = part[method].mean(), part[baseline].mean()
                rows.append([*names, len(change), *means, mean, mean - half, mean + half])
    if not rows:
        raise ResultsError("no two seeds in common; train each --seed of both")
    return pd.DataFrame(rows, columns=COMPARED)


def details(read: PosGen) -> pd.DataFrame:
    """Every number at full precision: what CSV and JSON hold."""
    names = {"experiment": "Origin", "trained": "Encoding", "tested": "Tested with",
             "subtask": "Sub-task", "seeds": "Seeds", "inside": "ID", "past": "OOD",
             "deviation": "Deviation", "learned": "Learned", "published": "Published"}  # fmt: skip
    return places(read).drop(columns="rank").rename(columns=names)
