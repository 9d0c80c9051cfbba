"""Results on disk, read as data from elsewhere: checked field by field, never executed."""

from leval_harness.old_results.fields import ResultsError
from leval_harness.old_results.load import Results, load_results
from leval_harness.old_results.run_record import Run
from leval_harness.old_results.scores import Score

__all__ = ["Results", "ResultsError", "Run", "Score", "load_results"]
