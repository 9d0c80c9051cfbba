"""Results on disk, read as data from elsewhere: checked field by field, never executed."""

from leval_leaderboard.results.frames import Results, load_results
from leval_leaderboard.results.schema import SCHEMA_VERSION, ResultsError, Run

__all__ = ["SCHEMA_VERSION", "Results", "ResultsError", "Run", "load_results"]
