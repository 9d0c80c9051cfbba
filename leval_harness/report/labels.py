"""Names that readers see: tasks, methods, lengths; blocks and rows of comparable numbers."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from leval_harness.results.methods import SETTING
from leval_tasks.closed.catalog import TASKS

CLOSED = {name: task.title for name, task in TASKS.items() if task.in_group}
"""The six tasks of the paper's Table 2, in its order; only all six have an average."""

BESIDE = {name: task.title for name, task in TASKS.items() if not task.in_group}
"""Closed-ended tasks that are in no average."""

POSGEN = {
    "posgen_recursive": "Recursive",
    "posgen_cot": "CoT",
    "posgen_semi_recursive": "Semi-recursive",
}
"""In the order of the paper's Table 1."""

_LABELS = {
    "ppl_govreport": "GovReport",
    "ppl_proofpile": "Proof-pile",
    "ppl_pg19": "PG19",
    "ppl_pydocs": "Python docs",
    **CLOSED,
    **BESIDE,
    **POSGEN,
}


SAMPLE = "bundled sample, not the real documents"

OF_RUN = ("backend", "dtype", "gen_kwargs", "chat_template", "seed")
OF_TASK = ("shots", "data")
OF_MODEL = ("frame", "answer_prefix", "end_of_thinking", "task_hash")
"""Settings of a task that go with the model: they do not separate models from each other."""

JSON_COLUMNS = ("rope", "arguments")
"""Columns that hold settings as JSON."""

LONGEST = 60


def task_label(task: str) -> str:
    """Short name of a task for a column head."""
    return _LABELS.get(task, task)


def length_label(length: float | None) -> str:
    """Context length as papers write it: 8192 -> `8K`, 10000 -> `10,000`."""
    if length is None or pd.isna(length):
        return "–"
    whole = int(length)
    return f"{whole // 1024}K" if whole % 1024 == 0 else f"{whole:,}"


def counted(number: float, noun: str) -> str:
    """`1 document`, `3 documents`."""
    return f"{number:.12g} {noun}{'' if number == 1 else 's'}"


def blocks(scores: pd.DataFrame, across: str) -> pd.Series:
    """A title for each row of scores, the same for those that may be ranked against each other.

    It is the model (nothing across models) and of each run the settings in which runs differ within
    a task. A run without numbers goes with one of its sweep and model that has some.
    """
    of_models = across == "models"
    own = [name for name in scores if name.startswith(SETTING)]
    if of_models:
        own = [name for name in own if name.removeprefix(SETTING) not in OF_MODEL]
    model = pd.Series("", scores.index) if of_models else scores["model"].copy()
    title, measured = model.copy(), scores["name"].notna()
    for name in (*(() if of_models else OF_RUN), *OF_TASK, *own):
        told = pd.Series([_told(name, value) for value in scores[name]], scores.index)[measured]
        differs = told.groupby([model, scores["task"]]).transform("nunique") > 1
        of_run = told[differs].groupby(scores["run"]).agg(_joined)
        title += scores["run"].map(lambda run, of=of_run: _appended(of.get(run, "")))
    of_sample = scores["sample"].fillna(False).astype(bool)
    title += of_sample.map({True: _appended(SAMPLE), False: ""})
    title += pd.Series([_appended(_partial(*each)) for each in _limits(scores)], scores.index)
    places = list(zip(scores["sweep"], model, strict=True))
    first: dict[tuple[str, str], str] = {}
    for place, name, is_measured in zip(places, title, measured, strict=True):
        if is_measured:
            first.setdefault(place, name)
    known = pd.Series([first.get(place) for place in places], scores.index, dtype=object)
    return title.where(measured | known.isna(), known).str.removeprefix(" · ")


def _told(name: str, value: object) -> str:
    """A setting in a title: nothing where it is unset, the name alone of what holds."""
    if pd.isna(value) or value is False or value in ("", "{}"):
        return ""
    name = name.removeprefix(SETTING).replace("_", " ")
    return name if value is True else f"{name} {value}"[:LONGEST]


def _joined(documents: Iterable[str]) -> str:
    return " and ".join(sorted({*documents} - {""}))


def _appended(text: str) -> str:
    return f" · {text}" if text else ""


def _limits(scores: pd.DataFrame) -> Iterable[tuple[Any, ...]]:
    columns = ("partial", "limit", "num_docs")
    return scores.reindex(columns=columns).itertuples(index=False, name=None)


def _partial(partial: object, limit: float, documents: float) -> str:
    """How a partial number was limited; a limit below 1 is a share of the questions."""
    if pd.isna(partial) or not partial:
        return ""
    if pd.notna(limit) and limit:
        part = f"{100 * limit:g}% of each task's questions" if limit < 1 else f"{limit:g} questions"
        return f"partial: the first {part}" + ("" if limit < 1 else " of each task")
    if pd.notna(documents):
        return f"partial: {counted(documents, 'document')} of each task"
    return "partial"


def labels(scores: pd.DataFrame, across: str) -> pd.DataFrame:
    """The row that each number stands in, and whether a later run repeats it.

    The row is the method (model and method across models), with what distinguishes methods of one
    name. A run that differs from another in nothing is a repetition: both get their date.

    Args:
        scores: with the column `block`.
        across: `methods` or `models`.

    Returns:
        `label`; `stem`, the same without a date; `older`, whether it is an earlier run of several.
    """
    of_models = across == "models"
    name = scores["model"] + ", " + scores["method"] if of_models else scores["method"].copy()
    apart = pd.Series("", scores.index)
    for column in ("rope", "checkpoint", "precision", "arguments", *(OF_RUN if of_models else ())):
        values = scores[column].astype(object).fillna("").astype(str)
        for _, part in values.groupby([scores["block"], name]):
            if len(others := sorted({*part})) > 1:
                told = [_differing(column, value, others) for value in part]
                apart[part.index] += [f", {text}" if text else "" for text in told]
    label = name + apart.map(lambda text: f" ({text[2:]})" if text else "")
    place = [scores[each] for each in ("block", "context_length", "task", "name", "filter")]
    run = scores["run"].where(scores["name"].notna())
    newest = _newest(scores).where(scores["name"].notna())
    groups = [label, *place]
    repeats = run.groupby(groups, dropna=False).transform("nunique") > 1
    older = newest < newest.groupby(groups, dropna=False).transform("max")
    date = scores["created"].str.slice(0, 19).str.replace("T", " ")
    date = date.fillna("run " + scores["run"].astype(str))
    of_run = scores["run"].isin(scores["run"][repeats])
    dated = label.where(~of_run, label + " (" + date + ")")
    return pd.DataFrame({"label": dated, "stem": label, "older": older})


def _newest(scores: pd.DataFrame) -> pd.Series:
    """A number that is larger for runs created later; the place decides between equal dates."""
    runs = scores[["run", "created"]].drop_duplicates("run").sort_values(["created", "run"])
    order = pd.Series(range(len(runs)), index=runs["run"])
    return scores["run"].map(order)


def _differing(column: str, value: str, others: Sequence[str]) -> str:
    """Return what distinguishes a value of a column from others, for a label.

    Of settings in JSON these are the ones in which any two differ, each with its value; one that
    this value lacks is not named.

    Args:
        column: name of the column.
        value: its text; empty where it is missing.
        others: all values of rows of one name.
    """
    if column not in JSON_COLUMNS:
        name = "" if column == "checkpoint" else column
        return _told(name, value).strip()
    settings = _settings(value)
    all_settings = [_settings(other) for other in others]
    listed = [
        f"{name} {settings[name]}"
        for name in settings
        if any(other.get(name) != settings[name] for other in all_settings)
    ]
    return ", ".join(listed)[:LONGEST]


def _settings(text: str) -> dict[str, Any]:
    """Return the settings that a JSON text holds; empty of an empty text."""
    settings: dict[str, Any] = json.loads(text or "{}") or {}
    return settings
