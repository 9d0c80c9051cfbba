"""Results on disk, read as data from elsewhere: checked field by field, never executed."""

from leval_leaderboard.results.load import Results, load_results
from leval_leaderboard.results.schema import SCHEMA_VERSION, ResultsError, Run
from leval_leaderboard.results.scores import Score

__all__ = ["SCHEMA_VERSION", "Results", "ResultsError", "Run", "Score", "load_results"]
