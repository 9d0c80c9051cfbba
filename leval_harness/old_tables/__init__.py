"""Tables of an analysis: one table model, several formats; each format escapes its own text."""

from leval_harness.old_tables.build import build_tables
from leval_harness.old_tables.details import details_table
from leval_harness.old_tables.formats import render
from leval_harness.old_tables.scores import leaderboard_table

__all__ = ["build_tables", "details_table", "leaderboard_table", "render"]
