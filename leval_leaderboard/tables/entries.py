"""A score with what was learned from comparing it: what tables, figures and page show."""

from dataclasses import dataclass

from leval_leaderboard.results.runs import Run
from leval_leaderboard.results.scores import Score, lower_is_better

SIGNIFICANT, CANNOT_TELL = "*", "?"


@dataclass(frozen=True, slots=True)
class Difference:
    """A method minus the baseline of its block, on the questions that both answered.

    `difference`, `low`, `high` (at the corrected level) and `detectable` are fractions for scores
    and nats a token for perplexities; None where the documents cannot give them. `p_holm` is `p`
    corrected within the task; `smallest_p` is the smallest that so many documents could give at
    all, `threshold` what it has to reach. `mark` is `SIGNIFICANT`, `CANNOT_TELL` or empty.
    """

    difference: float
    low: float | None
    high: float | None
    p: float
    p_holm: float
    smallest_p: float
    threshold: float
    mark: str
    wins: int
    ties: int
    losses: int
    detectable: float | None


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
        return self.run.context_length if self.score.at is None else self.score.at

    @property
    def mark(self) -> str:
        """The mark of its difference."""
        return self.difference.mark if self.difference else ""

    @property
    def is_perplexity(self) -> bool:
        """Whether it stands in a table of perplexities."""
        return lower_is_better(self.score.metric) or self.task.startswith("ppl_")
