"""A score with what was learned from comparing it: what tables, figures and page show."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from leval_harness.results.run_record import Run
from leval_harness.results.scores import FAMILY_OF, Score, score_record
from leval_tasks.statistics.paired import Difference

SIGNIFICANT, CANNOT_TELL = "*", "?"


@dataclass(frozen=True, slots=True)
class Entry:
    """One analysed score.

    score: with the standard error and the number of clusters that the samples give.
    block: title of the rows that it may be ranked against.
    label: the method's name, with the run's number where two runs share a place.
    low, high: ends of the 95% interval.
    interval: how it was made: `clustered`, `exact`, `reported` (lm-eval's own standard error, no
        ends) or `none`.
    rank: 1 is best; None where nobody differs.
    difference: to the block's baseline; None for the baseline itself and what cannot be paired.
    """

    score: Score
    run: Run
    block: str
    label: str
    low: float | None = None
    high: float | None = None
    interval: str = "none"
    rank: int | None = None
    difference: Difference | None = None

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.score.task

    @property
    def length(self) -> int | None:
        """Context length of the number: the one its metric names, else the run's."""
        return self.score.context_length if self.score.at is None else self.score.at

    @property
    def mark(self) -> str:
        """The mark of its difference."""
        return self.difference.mark if self.difference else ""

    @property
    def is_perplexity(self) -> bool:
        """Whether it is one of our tasks', which have tables of their own."""
        return self.family == "perplexity"

    @property
    def family(self) -> str | None:
        """The family of the task, where it is one of ours."""
        return FAMILY_OF.get(self.task)

    def record(self) -> dict[str, Any]:
        """Everything known of it, flat; `diff_low` and `diff_high` end the difference."""
        of_entry = ("block", "label", "low", "high", "interval", "rank")
        compared = asdict(self.difference) if self.difference else {}
        ends = {"low": "diff_low", "high": "diff_high"}
        return {
            **score_record(self.score, self.run),
            **{name: getattr(self, name) for name in of_entry},
            **{ends.get(f.name, f.name): compared.get(f.name) for f in fields(Difference)},
            "mark": self.mark,
        }
