"""Names that readers see: tasks, methods, lengths; blocks and rows of comparable numbers."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from leval_harness.results.lm_eval_files import WEIGHTS
from leval_harness.results.lm_eval_samples import hash_of
from leval_harness.results.methods import SETTING
from leval_tasks.closed.catalog import TASKS
from leval_tasks.common.metrics import FAMILY_OF

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
    "ppl_pysource": "Python source",
    "retrieval_niah_single": "Needle, single",
    "retrieval_niah_multikey": "Needle, several keys",
    "retrieval_niah_multivalue": "Needle, several values",
    "retrieval_niah_multiquery": "Needle, several queries",
    **CLOSED,
    **BESIDE,
    **POSGEN,
}

SAMPLE = "bundled sample, not the real documents"

# Settings that go with a run, with its task, and with the model that a task is rendered for.
OF_RUN = ("backend", "dtype", "gen_kwargs", "chat_template", "seed")
OF_TASK = ("shots", "data")
OF_MODEL = ("frame", "answer_prefix", "end_of_thinking", "task_hash", "window", "generation")
"""Settings of a task that go with the model: they do not separate models from each other."""

OF_GENERATION = ("gen_kwargs", "seed", f"{SETTING}torch_seed", f"{SETTING}numpy_seed")
"""Settings of a run that a task which generates nothing does not read."""

PLAIN_TEXT = ("perplexity", "effective_context")
"""Families of tasks that read documents as they are: a chat template changes nothing in them."""

OF_PROMPTS = (
    "chat_template",
    f"{SETTING}system_instruction",
    f"{SETTING}fewshot_as_multiturn",
    f"{SETTING}fewshot_seed",
)
"""Settings of prompts, which do not apply to documents that are read as they are."""

OF_LENGTH = (f"{SETTING}num_samples",)
"""Settings of a task that may differ between context lengths: long prompts cost more."""

OWN_FILE = "_jsonl"
"""End of the names of tasks that read a user's file."""

JSON_COLUMNS = ("rope", "arguments")
"""Columns that hold settings as JSON."""

LONGEST = 60
"""Characters of a setting in a title or label."""


def task_label(task: str) -> str:
    """Return the short name of a task for the head of a column."""
    return _LABELS.get(task, task)


def task_title(task: str, source: object = None, alias: object = None) -> str:
    """Return the name under which a task is shown: that of the file where it reads a user's.

    A file of a user's under the name of published documents is named beside it, with its digest.

    Args:
        task: name of the task.
        source: the column of that name; the path of a user's file.
        alias: the column of that name.
    """
    if isinstance(alias, str) and alias:
        return alias
    if task.endswith(OWN_FILE) and task in FAMILY_OF and isinstance(source, str) and source:
        return Path(source).name
    return task_label(task)


def task_titles(rows: pd.DataFrame) -> pd.Series:
    """Return the name under which the task of each row is shown."""
    described = rows.reindex(columns=["task", "source", "alias"])
    titles = [task_title(*row) for row in described.itertuples(index=False, name=None)]
    return pd.Series(titles, rows.index, dtype=object)


def length_label(length: float | None) -> str:
    """Return a context length as papers write it: 8192 -> `8K`, 10000 -> `10,000`."""
    if length is None or pd.isna(length):
        return "–"
    tokens = int(length)
    if tokens % 1024 == 0:
        return f"{tokens // 1024}K"
    return f"{tokens:,}"


def counted(number: float, noun: str) -> str:
    """Return a number with its noun: `1 document`, `3 documents`."""
    plural = "" if number == 1 else "s"
    return f"{number:.12g} {noun}{plural}"


def is_across_models(rows: pd.DataFrame) -> bool:
    """Return whether rows were compared across models: their labels begin with the model's name."""
    named = zip(rows["label"], rows["model"], strict=True)
    return any(str(label).startswith(f"{model}, ") for label, model in named)


def model_and_method(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the columns `Model` and `Method` of tables.

    Within a model they are block and label. Across models the label begins with the model, and the
    block, if it has a title, says in which settings its runs differ from others.
    """
    models = []
    methods = []
    for block, label, model in zip(rows["block"], rows["label"], rows["model"], strict=True):
        is_across = str(label).startswith(f"{model}, ")
        models.append(f"{model}{_appended(block)}" if is_across else block)
        methods.append(str(label).removeprefix(f"{model}, ") if is_across else label)
    return pd.DataFrame({"Model": models, "Method": methods}, rows.index)


def blocks(scores: pd.DataFrame, across: str) -> pd.Series:
    """Return a title for each row of scores, the same for those that may be ranked together.

    It is the model (nothing across models), and of each run the settings in which runs differ
    within a task. A run without numbers has the title of one of its sweep and model that has some.

    Args:
        scores: rows of `scores` with what `runs` says of each run.
        across: `methods` or `models`.
    """
    of_models = across == "models"
    group = pd.Series("", scores.index) if of_models else scores["model"].copy()
    has_numbers = scores["name"].notna()
    measured = scores[has_numbers]
    # two files of a user are two tasks, although one task reads them
    group_and_task = [group[has_numbers], task_titles(measured)]
    title = group.copy()
    for column in separating_columns(scores, of_models):
        together = group_and_task
        if column in OF_LENGTH:
            together = [*group_and_task, measured["context_length"].fillna(0)]
        texts = _texts_that_differ(measured, together, column)
        if texts.empty:
            continue
        # What differs in one task separates the whole run, so that its tasks stay together.
        of_run = texts.groupby(scores["run"]).agg(_joined)
        title += scores["run"].map(lambda run, of_run=of_run: _appended(of_run.get(run, "")))
    is_sample = scores["sample"].fillna(False).astype(bool)
    title += is_sample.map({True: _appended(SAMPLE), False: ""})
    title += pd.Series([_appended(_partial(*limits)) for limits in _limits(scores)], scores.index)

    # A run that failed has no settings of tasks: without this it would be in a block of its own.
    sweep_and_group = list(zip(scores["sweep"], group, strict=True))
    title_of_sweep: dict[tuple[str, str], str] = {}
    titles = []
    for key, text, is_measured in zip(sweep_and_group, title, has_numbers, strict=True):
        if is_measured:
            title_of_sweep.setdefault(key, text)
    for key, text, is_measured in zip(sweep_and_group, title, has_numbers, strict=True):
        titles.append(text if is_measured else title_of_sweep.get(key, text))
    return pd.Series(titles, scores.index, dtype=title.dtype).str.removeprefix(" · ")


def separating_columns(scores: pd.DataFrame, of_models: bool) -> list[str]:
    """Return the columns with settings that separate runs which differ in them.

    Args:
        scores: rows of `scores` with what `runs` says of each run.
        of_models: whether models are compared, which have some settings of their own.
    """
    columns = list(OF_TASK)
    if not of_models:
        columns = [*OF_RUN, *columns]
    for column in scores:
        if not column.startswith(SETTING):
            continue
        if not of_models or column.removeprefix(SETTING) not in OF_MODEL:
            columns.append(column)
    return columns


def _texts_that_differ(
    scores: pd.DataFrame, together: Sequence[pd.Series], column: str
) -> pd.Series:
    """Return a setting in words, of the rows that differ in it from others.

    Args:
        scores: rows with numbers.
        together: columns whose equal values put rows together, as those of one model and task.
        column: name of the setting's column.
    """
    settings = _values_read(scores, column)
    texts = pd.Series(
        [_setting_text(column, value) for value in settings], scores.index, dtype=object
    )
    if len(set(texts)) < 2:  # most settings: grouping is slow
        return texts[:0]
    values = texts.groupby(list(together)).transform("nunique")
    return texts[values > 1]


def _values_read(scores: pd.DataFrame, column: str) -> pd.Series:
    """Return a column of settings without those that a row's task does not read.

    A task that generates nothing scores the same under any settings of generation, and one that
    reads documents as they are under any chat template.
    """
    if column in OF_GENERATION:
        generates_nothing = scores["generates"].eq(False).fillna(False).astype(bool)
        return scores[column].mask(generates_nothing | _reads_plain_text(scores))
    if column in OF_PROMPTS:
        return scores[column].mask(_reads_plain_text(scores))
    return scores[column]


def setting_texts(scores: pd.DataFrame, column: str) -> pd.Series:
    """Return the values of a setting that the tasks of some rows read; empty where it is unset."""
    values = _values_read(scores, column)
    texts = ["" if pd.isna(value) or value in ("", "{}") else f"{value}" for value in values]
    return pd.Series(texts, scores.index, dtype=object)


def _reads_plain_text(scores: pd.DataFrame) -> pd.Series:
    """Return where a task reads documents as they are and generates nothing."""
    return scores["task"].map(FAMILY_OF).isin(PLAIN_TEXT)


def _setting_text(name: str, value: object) -> str:
    """Return a setting for a title: nothing where it is unset, its name alone if it is True."""
    if pd.isna(value) or value is False or value in ("", "{}"):
        return ""
    name = name.removeprefix(SETTING).replace("_", " ")
    if value is True:
        return name
    return _shortened(f"{name} {value}")


def _shortened(text: str) -> str:
    """Return a setting in words, cut where it is long; settings that differ stay different."""
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST - 10]}… {hash_of(text)[:8]}"


def _joined(texts: Iterable[str]) -> str:
    """Return the different texts of a run, joined."""
    return " and ".join(sorted({*texts} - {""}))


def _appended(text: str) -> str:
    """Return a text as the end of a title."""
    return f" · {text}" if text else ""


def _limits(scores: pd.DataFrame) -> Iterable[tuple[Any, ...]]:
    """Return what limited each row: the arguments of `_partial`."""
    columns = ("partial", "limit", "num_docs")
    return scores.reindex(columns=columns).itertuples(index=False, name=None)


def _partial(partial: object, limit: float, documents: float) -> str:
    """Return how a partial number was limited; a limit below 1 is a share of the questions."""
    if pd.isna(partial) or not partial:
        return ""
    if pd.notna(limit) and limit:
        if limit < 1:
            return f"partial: the first {100 * limit:g}% of each task's questions"
        return f"partial: the first {limit:g} questions of each task"
    if pd.notna(documents):
        return f"partial: {counted(documents, 'document')} of each task"
    return "partial"


def labels(scores: pd.DataFrame, across: str) -> pd.DataFrame:
    """Return the label of the row that each number is in, and whether a later run repeats it.

    The label is the method (model and method across models), with what distinguishes methods of one
    name. A run that differs from another in nothing is a repetition: both get their date.

    Args:
        scores: with the column `block`.
        across: `methods` or `models`.

    Returns:
        `label`; `stem`, the same without a date; `older`, whether it is an earlier run of several.
    """
    stem = _labels_without_date(scores, across)
    number_keys = [scores[name] for name in ("block", "context_length", "name", "filter")]
    number_keys.append(task_titles(scores).rename("task_title"))
    # A row without a name says only that a run has no numbers: it repeats nothing.
    has_number = scores["name"].notna()
    runs = scores["run"].where(has_number)
    creation = _creation_order(scores).where(has_number)

    of_number = [stem, *number_keys]
    is_repeated = runs.groupby(of_number, dropna=False).transform("nunique") > 1
    latest = creation.groupby(of_number, dropna=False).transform("max")
    date = scores["created"].str.slice(0, 19).str.replace("T", " ")
    date = date.fillna("run " + scores["run"].astype(str))
    # All rows of a run get the date, also those of tasks that the other run did not have.
    has_date = scores["run"].isin(scores["run"][is_repeated])
    label = stem.where(~has_date, stem + " (" + date + ")")
    return pd.DataFrame({"label": label, "stem": stem, "older": creation < latest})


def _labels_without_date(scores: pd.DataFrame, across: str) -> pd.Series:
    """Return each row's method, with what distinguishes it from others of one name and block."""
    columns = ["rope", "checkpoint", "precision", "arguments"]
    name = scores["method"]
    if across == "models":
        columns += OF_RUN
        name = scores["model"] + ", " + scores["method"]
    # Of a run that is not finished no settings are known: it is not another variant of its method.
    has_settings = scores[columns].notna().any(axis=1)
    known = scores[has_settings]
    details: dict[Any, list[str]] = {row: [] for row in scores.index}
    for column in columns:
        values = _values_read(known, column).astype(object).fillna("").astype(str)
        for _, of_one_name in values.groupby([known["block"], name[has_settings]]):
            different = sorted(set(of_one_name))
            if len(different) < 2:
                continue
            for row, value in of_one_name.items():
                text = _differing(column, value, different)
                if text:
                    details[row].append(text)
    suffix = pd.Series({row: f" ({', '.join(texts)})" for row, texts in details.items() if texts})
    return name + suffix.reindex(scores.index).fillna("")


def _creation_order(scores: pd.DataFrame) -> pd.Series:
    """Return a number that is larger for runs created later; the run decides between equal dates."""
    runs = scores[["run", "created"]].drop_duplicates("run").sort_values(["created", "run"])
    order = pd.Series(range(len(runs)), index=runs["run"])
    return scores["run"].map(order)


def _differing(column: str, value: str, values: Sequence[str]) -> str:
    """Return what distinguishes a value of a column from others, for a label.

    Of settings in JSON these are the ones in which any two differ, each with its value; one that
    this value lacks is not named. Weights of an unknown commit may be those of any other run.

    Args:
        column: name of the column.
        value: its text; empty where it is missing.
        values: all values of rows of one name.
    """
    if column == "checkpoint":
        return _shortened(value)
    if column not in JSON_COLUMNS:
        return _setting_text(column, value)
    settings = _settings(value)
    all_settings = [_settings(text) for text in values]
    differing = []
    for name, own_value in settings.items():
        known = [other for other in all_settings if name in other or name not in WEIGHTS]
        if any(other.get(name) != own_value for other in known):
            differing.append(f"{name} {own_value}")
    return _shortened(", ".join(differing))


def _settings(text: str) -> dict[str, Any]:
    """Return the settings that a JSON text holds; empty of an empty text."""
    settings: dict[str, Any] = json.loads(text or "{}") or {}
    return settings
