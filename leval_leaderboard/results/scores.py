"""One number of one run."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import leval_tasks
from leval_leaderboard.results.runs import TELEMETRY, Run
from leval_tasks import metric_names

FAMILY_OF = {
    file.stem: file.parent.parent.name
    for file in Path(leval_tasks.__file__).parent.glob("*/tasks/*.yaml")
}
"""Each of our tasks and groups, and its family: `closed`, `perplexity` or `posgen`."""


def lower_is_better(metric: str) -> bool:
    """Whether a metric is a perplexity or a rate of bits."""
    return "perplexity" in metric or "bits_per_byte" in metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One metric of one task of one run; a run without numbers has one without a metric a task.

    `run` is a place in `Results.runs`, where everything that holds for the whole run stands. Scores
    are fractions, perplexities as they are, and whatever is not known is None: also the value of
    what is not `done` (`status` and `note` say why). `primary` numbers are those of the tables.

    n, clusters: questions, and what they are clustered by (documents).
    cut, unparsed: share of the questions whose document was shortened, whose answer was not found.
    prompt_tokens, kept_tokens: mean of a question.
    chance: expected score of a guess.
    partial: not all questions of the task were asked.
    sample, source, data, python: whether the bundled sample was read, where documents came from,
        a fingerprint of their files, and the version of Python whose documentation they are.
    softmax: precision of a perplexity's softmax.
    """

    run: int
    task: str
    metric: str = ""
    primary: bool = True
    status: str = "done"
    note: str = ""
    value: float | None = None
    stderr: float | None = None
    n: int | None = None
    clusters: int | None = None
    cut: float | None = None
    unparsed: float | None = None
    prompt_tokens: float | None = None
    kept_tokens: float | None = None
    chance: float | None = None
    higher_is_better: bool = True
    partial: bool = False
    sample: bool = False
    source: str = ""
    data: str = ""
    python: str = ""
    softmax: str = ""

    @property
    def family(self) -> str:
        """The metric without the context length in its name."""
        return metric_names.split(self.metric)[0]

    @property
    def at(self) -> int | None:
        """The context length in the metric's name."""
        return metric_names.split(self.metric)[1]

    @property
    def finished(self) -> bool:
        """Whether there is a number."""
        return self.status == "done" and self.value is not None

    @property
    def percent(self) -> float:
        """What a score is shown times: 100, and 1 for a perplexity."""
        return 1.0 if lower_is_better(self.metric) else 100.0


def score_record(score: Score, run: Run) -> dict[str, Any]:
    """A score and its run as one flat record, as users of Python are handed it."""
    of_run = ("model", "method", "context_length", "limit", "seconds", "tokens_per_second")
    return {
        **asdict(score),
        **{name: getattr(run, name) for name in of_run},
        **{name: run.telemetry.get(name) for name in TELEMETRY},
        "baseline": run.baseline or "",
        "created": run.created,
        "command": run.command,
    }


def frame_of(records: Iterable[Mapping[str, Any]]) -> Any:
    """A pandas frame, a row a record; a missing number is NaN, a missing text empty."""
    import numpy as np
    import pandas as pd

    return pd.DataFrame(list(records)).fillna(np.nan)
