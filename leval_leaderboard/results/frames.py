"""Scores as a pandas frame: what users of Python are handed; nothing in here reads one."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from leval_leaderboard.results.runs import TELEMETRY, Run
from leval_leaderboard.results.scores import Score


def score_record(score: Score, run: Run) -> dict[str, Any]:
    """A score and its run as one flat record."""
    return {
        **asdict(score),
        "model": run.model,
        "method": run.method,
        "context_length": run.context_length,
        "limit": run.limit,
        "seconds": run.seconds,
        "tokens_per_second": run.tokens_per_second,
        **{name: run.telemetry.get(name) for name in TELEMETRY},
        "baseline": run.baseline or "",
        "created": run.created,
        "command": run.command,
    }


def frame_of(records: Iterable[Mapping[str, Any]]) -> Any:
    """A row a record; a missing number is NaN, a missing text empty."""
    import numpy as np
    import pandas as pd

    return pd.DataFrame(list(records)).fillna(np.nan)
