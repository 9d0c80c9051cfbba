"""Results on disk, read as data from elsewhere: checked field by field, never executed."""

from leval_leaderboard.results.fields import ResultsError
from leval_leaderboard.results.load import Results, load_results
from leval_leaderboard.results.runs import Run
from leval_leaderboard.results.scores import Score

__all__ = ["Results", "ResultsError", "Run", "Score", "load_results"]
