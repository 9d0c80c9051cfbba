"""Results as pandas frames: what users of Python are handed, and nothing in here reads."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from leval_leaderboard.results.runs import TELEMETRY, Run
from leval_leaderboard.results.scores import Score

if TYPE_CHECKING:
    from leval_leaderboard.results.load import Results

SCORE_COLUMNS = (
    "run", "status", "note", "model", "method", "context_length", "task", "metric", "primary",
    "value", "stderr", "n", "clusters", "cut", "unparsed", "prompt_tokens", "kept_tokens", "chance",
    "higher_is_better", "partial", "limit", "sample", "data", "source", "python",
    "softmax", "seconds", "tokens_per_second", "peak_memory_bytes", "tokens_prefilled",
    "tokens_shared", "tokens_generated", "tokens_unique", "baseline", "created", "command",
)  # fmt: skip


def score_record(score: Score, run: Run) -> dict[str, Any]:
    """A score and its run as one flat record (`SCORE_COLUMNS`)."""
    return {
        **{each.name: getattr(score, each.name) for each in fields(score)},
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


def score_frame(results: "Results") -> Any:
    """A row a score; a missing number is NaN, a missing text empty."""
    import pandas as pd

    records = [score_record(score, results.runs[score.run]) for score in results.scores]
    return numbers_as_floats(pd.DataFrame(records, columns=list(SCORE_COLUMNS)))


def numbers_as_floats(frame: Any) -> Any:
    """Columns of numbers of which some are None become floats with NaN."""
    for name in frame.columns:
        values = frame[name].tolist()
        known = [value for value in values if value is not None]
        if len(known) < len(values) and all(isinstance(value, int | float) for value in known):
            frame[name] = frame[name].astype(float)
    return frame


def sample_frame(results: "Results") -> Any:
    """A row for each run, task, metric and question, names as categories."""
    import numpy as np
    import pandas as pd

    names = pd.Index(results.names.all())
    parts = []
    for (run, task), samples in results.samples.items():
        shared = {
            "run": run,
            "task": task,
            **{
                noun: pd.Categorical.from_codes(codes, categories=names)
                for noun, codes in (
                    ("question", samples.questions),
                    ("document", samples.documents),
                    ("cluster", samples.clusters),
                )
            },
            "unparsed": samples.unparsed,
            "truncated": samples.truncated,
        }
        for metric, (numerator, denominator) in samples.metrics.items():
            parts.append(
                pd.DataFrame(
                    {**shared, "metric": metric, "numerator": numerator, "denominator": denominator}
                )
            )
    columns = ["run", "task", "metric", "question", "document", "cluster", "numerator",
               "denominator", "unparsed", "truncated"]  # fmt: skip
    frame = (
        pd.concat(parts, ignore_index=True)
        if parts
        else pd.DataFrame({c: np.array([]) for c in columns})
    )
    return frame[columns].astype({"task": "category", "metric": "category"})
