"""Entries as a pandas frame, for users of Python."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from leval_leaderboard.results.frames import frame_of, score_record
from leval_leaderboard.tables.entries import Difference, Entry


def entry_frame(entries: Sequence[Entry]) -> Any:
    """The columns of scores, then `block, label, low, high, interval, rank`, then the difference's.

    A missing number is NaN; `diff_low` and `diff_high` are the ends of the difference.
    """
    ends = {"low": "diff_low", "high": "diff_high"}
    names = [each.name for each in fields(Difference)]
    of_entry = ("block", "label", "low", "high", "interval", "rank")
    return frame_of(
        {
            **score_record(entry.score, entry.run),
            **{name: getattr(entry, name) for name in of_entry},
            **{ends.get(name, name): getattr(entry.difference, name, None) for name in names},
            "mark": entry.mark,
        }
        for entry in entries
    )
