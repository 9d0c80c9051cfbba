"""The fixture that compares numbers of the product with the stored ones."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

Rows = dict[str, dict[str, Any]]

LONG_LIST = 16
"""Lists of numbers with more entries are stored as arrays, beside the table of single values."""


@pytest.fixture
def check_rows(dataframe_regression: Any, ndarrays_regression: Any) -> Callable[..., None]:
    """Compare named rows of values with the files of the test: numbers within a tolerance.

    `pytest --force-regen` writes the files. Review their difference before you commit it: a number
    that moves is a decision, and CHANGELOG.md gives its reason.
    """

    def check(rows: Rows, rtol: float = 1e-6, atol: float = 1e-9) -> None:
        tolerance = {"rtol": rtol, "atol": atol}
        arrays = {
            f"{row}: {name}": np.array(value)
            for row, values in rows.items()
            for name, value in values.items()
            if is_long(value)
        }
        table = table_of(rows)
        if len(table):
            dataframe_regression.check(table, default_tolerance=tolerance)
        if arrays:
            ndarrays_regression.check(arrays, default_tolerance=tolerance)

    return check


def is_long(value: Any) -> bool:
    """Return whether a value is a long list of numbers."""
    return isinstance(value, list) and len(value) > LONG_LIST


def table_of(rows: Rows) -> pd.DataFrame:
    """Return one line per single value: row, name, and the value as a number or as text.

    A missing value has no line: where it gets a number, or a number goes, lines no longer match.
    """
    lines = [
        {"row": row, "name": name, **number_or_text(value)}
        for row, values in sorted(rows.items())
        for name, value in sorted(single_values(values))
        if value is not None
    ]
    table = pd.DataFrame(lines, columns=["row", "name", "number", "text"])
    return table.astype({"number": float}).set_index("row")


def single_values(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values that are not long lists; entries of short lists get a name each."""
    for name, value in values.items():
        if not isinstance(value, list):
            yield name, value
        elif not is_long(value):
            yield from ((f"{name}[{position:02}]", entry) for position, entry in enumerate(value))


def number_or_text(value: Any) -> dict[str, Any]:
    """Return the columns `number` and `text` of one value; an integer is compared exactly."""
    if isinstance(value, float):
        return {"number": value, "text": "" if np.isfinite(value) else str(value)}
    return {"number": None, "text": str(value)}


@pytest.fixture(autouse=True)
def _few_lm_eval_tasks(few_lm_eval_tasks: None) -> None:
    """lm-eval reads few of its own tasks here."""
