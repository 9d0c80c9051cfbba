"""What was run: tokens, time, memory, hardware and versions of each run."""

import pandas as pd

from leval_harness.report.labels import length_label, task_titles
from leval_harness.report.table import NONE, Table

GIBIBYTE = 2**30
MAIN_PACKAGES = ("leval-harness", "lm_eval", "transformers", "torch", "vllm")


def runs_table(compared: pd.DataFrame) -> Table | None:
    """Return what each run read and how fast; None where nothing is known of any run.

    Args:
        compared: the compared frame.
    """
    needed = {"seconds", "tokens_prefilled", "model", "method", "status"}
    if not needed <= {*compared}:
        return None
    done = compared[compared["status"].eq("done") & compared["seconds"].notna()]
    if done.empty:
        return None
    rows = [_row(run, part) for run, part in done.groupby("run", sort=False)]
    cells = pd.DataFrame(rows).set_index(["Model", "Method", "Ctx"])
    is_empty = cells.eq(NONE).all()
    return Table.plain(
        "What was run",
        cells.loc[:, ~is_empty],
        "Tokens: prefilled and generated ones of the whole run. Peak memory: of the process on a "
        "CPU, of the device on a GPU.",
    )


def _row(run: object, part: pd.DataFrame) -> dict[str, str]:
    """Return the cells of one run."""
    first = part.iloc[0]
    measured = part[part["task"].ne("effective_context") & part["group"].ne(True).fillna(True)]
    measured_tasks = task_titles(measured).drop_duplicates()
    tokens = _number(first, "tokens_prefilled") + _number(first, "tokens_generated")
    seconds = _number(first, "seconds")
    tokens_per_second = tokens / seconds if seconds else 0.0
    return {
        "Model": str(first["model"]),
        "Method": str(first["method"]),
        "Ctx": length_label(first["context_length"]),
        "Tasks": ", ".join(measured_tasks),
        "Tokens": _number_text(tokens),
        "Seconds": _number_text(seconds),
        "Tokens/s": _number_text(tokens_per_second),
        "Peak memory, GiB": _number_text(_number(first, "peak_memory_bytes") / GIBIBYTE, 1),
        "dtype": _text(first, "dtype"),
        "Hardware": _text(first, "hardware"),
        "Versions": _versions(first),
    }


def _number(row: pd.Series, name: str) -> float:
    """Return a number of a run; zero where it is unknown."""
    value = row.get(name)
    if value is None or pd.isna(value):
        return 0.0
    return float(value)


def _number_text(value: float, digits: int = 0) -> str:
    """Return a number; a dash for zero, which means unknown."""
    return f"{value:,.{digits}f}" if value else NONE


def _text(row: pd.Series, name: str) -> str:
    value = row.get(name)
    if value is None or pd.isna(value):
        return NONE
    return str(value)


def _versions(row: pd.Series) -> str:
    """Return the versions of the packages that decide numbers."""
    versions = row.get("versions")
    if not isinstance(versions, dict):
        return NONE
    known = [f"{name} {versions[name]}" for name in MAIN_PACKAGES if name in versions]
    return ", ".join(known) or NONE
