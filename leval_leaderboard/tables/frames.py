"""Entries as a pandas frame, for users of Python."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from leval_leaderboard.results.frames import SCORE_COLUMNS, numbers_as_floats, score_record
from leval_leaderboard.tables.entries import Difference, Entry

RENAMED = {"low": "diff_low", "high": "diff_high"}


def entry_frame(entries: Sequence[Entry]) -> Any:
    """The columns of scores, then `block, label, low, high, interval, rank`, then the difference's.

    A missing number is NaN; `diff_low` and `diff_high` are the ends of the difference.
    """
    import pandas as pd

    names = [each.name for each in fields(Difference)]
    records = [
        {
            **score_record(entry.score, entry.run),
            "block": entry.block,
            "label": entry.label,
            "low": entry.low,
            "high": entry.high,
            "interval": entry.interval,
            "rank": entry.rank,
            **{RENAMED.get(name, name): getattr(entry.difference, name, None) for name in names},
            "mark": entry.mark,
        }
        for entry in entries
    ]
    columns = list(dict.fromkeys([*SCORE_COLUMNS, *(records[0] if records else ())]))
    return numbers_as_floats(pd.DataFrame(records, columns=columns))
