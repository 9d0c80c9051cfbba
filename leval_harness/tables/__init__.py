"""One table model, several renderers; escaping happens at the edge, in the renderer."""

from leval_harness.analysis.analyse import Analysis, analyse
from leval_harness.tables.build import build_tables
from leval_harness.tables.details import details_table
from leval_harness.tables.formats import render
from leval_harness.tables.scores import leaderboard_table

__all__ = ["Analysis", "analyse", "build_tables", "details_table", "leaderboard_table", "render"]
