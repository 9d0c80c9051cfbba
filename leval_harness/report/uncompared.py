"""What is not compared, why, and how to run it so that it is: one line for each reason."""

from collections.abc import Iterator

import pandas as pd

from leval_harness.report.compare import OTHER_QUESTIONS
from leval_harness.report.effective_context import TASK_PREFIX
from leval_harness.report.labels import (
    is_across_models,
    length_label,
    separating_columns,
    setting_texts,
    task_titles,
)
from leval_harness.report.number_text import joined_names
from leval_harness.results.layout import REFERENCE
from leval_harness.results.methods import SETTING

SAME_DOCUMENTS = "on the same documents (data_dir, file and num_docs in --metadata)"

REMEDIES = {
    "backend": "with the same --model",
    "dtype": "with the same dtype in --model_args",
    "gen_kwargs": "with the same --gen_kwargs",
    "chat_template": "both with --apply_chat_template or both without",
    "seed": "with the same --seed",
    "shots": "with the same --num_fewshot",
    "data": SAME_DOCUMENTS,
    "sample": SAME_DOCUMENTS,
    "limit": "with the same --limit",
    "num_docs": SAME_DOCUMENTS,
    f"{SETTING}system_instruction": "with the same --system_instruction",
    f"{SETTING}fewshot_as_multiturn": "both with --fewshot_as_multiturn or both without",
    f"{SETTING}torch_seed": "with the same --seed",
    f"{SETTING}numpy_seed": "with the same --seed",
    f"{SETTING}fewshot_seed": "with the same --seed",
    f"{SETTING}prompts": "with the same file of the task",
    f"{SETTING}generation": "with the same file of the task",
    f"{SETTING}version": "with the same version of lm-eval",
    f"{SETTING}task_hash": "with the same version of lm-eval",
}
"""Column with a setting -> how to run so that two runs agree in it."""

OF_LOGGED_SAMPLES = (f"{SETTING}task_hash", f"{SETTING}prompts")
"""Columns of which one run has a value and the other has none, where only one logged its samples."""

LONGEST_VALUE = 40
"""Characters of a setting in a sentence."""

MOST_NAMES = 4
"""Methods or tasks that a sentence names; others are counted."""


def uncompared_sentences(compared: pd.DataFrame) -> list[str]:
    """Return a sentence for each pair of comparison groups, and for each group with a gap.

    Args:
        compared: the compared frame.
    """
    rows = compared[compared["name"].notna() & compared["status"].eq("done")]
    rows = rows[~rows["method"].eq(REFERENCE)]
    if rows.empty:
        return []
    rows = rows.assign(title=task_titles(rows))
    sentences: list[str] = []
    subjects = [part for _, part in rows.groupby("model", sort=False)]
    if is_across_models(rows):
        subjects = [rows]
    sentences += _without_reference(compared)
    for of_model in subjects:
        sentences += _between_groups(of_model)
        for _, of_group in of_model.groupby("block", sort=False):
            sentences += _within_group(of_group)
    return list(dict.fromkeys(sentences))


def _without_reference(compared: pd.DataFrame) -> Iterator[str]:
    """Yield the methods that read documents which the unmodified model's windows did not."""
    is_read = compared["task"].str.startswith(TASK_PREFIX) & compared["status"].eq("done")
    is_method = ~compared["method"].eq(REFERENCE)
    has_reference = set(compared.loc[compared["baseline"].eq(REFERENCE), "label"])
    labels = compared.loc[is_read & is_method, "label"]
    missing = labels[~labels.isin(has_reference)]
    if not missing.empty:
        yield (
            f"Without a reference: {_names(missing)}. Evaluate the unmodified model on the same "
            "documents, too: the same command without --rope."
        )


def _between_groups(rows: pd.DataFrame) -> Iterator[str]:
    """Yield which settings keep runs of a model apart from those of its first comparison group."""
    groups = dict(list(rows.groupby("block", sort=False)))
    (_, first), *others = groups.items()
    for _, other in others:
        common = set(first["title"]) & set(other["title"])
        if not common:
            continue  # other tasks: there is nothing to compare
        own = first[first["title"].isin(common)]
        others_rows = other[other["title"].isin(common)]
        differences = _differing_settings(own, others_rows)
        if differences:
            values = ", ".join(f"{name} ({text})" for name, (text, _) in differences.items())
            remedies = dict.fromkeys(remedy for _, remedy in differences.values())
            yield (
                f"Not compared: {_names(others_rows['label'])} with {_names(own['label'])} on "
                f"{_names(own['title'])}, which differ in {values}. "
                f"Run them {joined_names(remedies, 'and')}."
            )


def _differing_settings(rows: pd.DataFrame, others: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Return name of a setting -> its values in two groups of rows, and how to make them agree."""
    differences = {}
    both = pd.concat([rows, others])
    for column in (*separating_columns(both, of_models=False), "sample", "limit", "num_docs"):
        if column not in both:
            continue
        texts = setting_texts(both, column)
        own = _values(texts.loc[rows.index])
        other = _values(texts.loc[others.index])
        if own == other:
            continue
        name = column.removeprefix(SETTING).replace("_", " ")
        remedy = REMEDIES.get(column, f"with the same {column.removeprefix(SETTING)} in --metadata")
        if column in OF_LOGGED_SAMPLES and "none" in (*own, *other):
            remedy = "both with --log_samples"
        differences[name] = (f"{' or '.join(other)} instead of {' or '.join(own)}", remedy)
    if "data" in differences:
        differences.pop("sample", None)
    return differences


def _values(texts: pd.Series) -> list[str]:
    """Return the different values of a setting in words, shortened."""
    values = dict.fromkeys(text or "none" for text in texts)
    return [value[:LONGEST_VALUE] for value in values]


def _within_group(rows: pd.DataFrame) -> Iterator[str]:
    """Yield what is not compared within a comparison group: other lengths, other questions."""
    if rows["label"].nunique() > 1:
        yield from _other_lengths(rows)
    is_other = rows["note"].fillna("").str.contains(OTHER_QUESTIONS, regex=False)
    other = rows[is_other]
    if not other.empty:
        yield (
            f"Not compared: {_names(other['label'])} on {_names(other['title'])}, which answered "
            "other questions than the other rows. Run them with the same --tasks, --metadata and "
            "--limit."
        )


def _other_lengths(rows: pd.DataFrame) -> Iterator[str]:
    """Yield the methods that share no length with the first one in any of their tasks."""
    lengths_of = {
        str(label): set(zip(part["title"], part["length"].fillna(0), strict=True))
        for label, part in rows.groupby("label", sort=False)
    }
    (first, of_first), *others = lengths_of.items()
    tasks_of_first = {task for task, _ in of_first}
    for label, pairs in others:
        common_tasks = tasks_of_first & {task for task, _ in pairs}
        if not common_tasks or of_first & pairs:
            continue
        own = _lengths(length for task, length in pairs if task in common_tasks)
        other = _lengths(length for task, length in of_first if task in common_tasks)
        yield (
            f"Not compared: {label} at {own} with {first} at {other}. Run them with the same "
            "context_length in --metadata."
        )


def _lengths(lengths: Iterator[float]) -> str:
    return joined_names([length_label(length) for length in sorted(set(lengths))], "and")


def _names(values: pd.Series) -> str:
    """Return the different names of a column, the first few of many."""
    names = list(dict.fromkeys(map(str, values)))
    if len(names) > MOST_NAMES:
        names = [*names[: MOST_NAMES - 1], f"{len(names) - MOST_NAMES + 1} more"]
    return joined_names(names, "and")
