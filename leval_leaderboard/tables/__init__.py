"""One table model, several renderers; escaping happens at the edge, in the renderer."""

from leval_leaderboard.tables.analysis import Analysis, analyse
from leval_leaderboard.tables.build import build_tables
from leval_leaderboard.tables.details import details_table
from leval_leaderboard.tables.formats import render
from leval_leaderboard.tables.scores import leaderboard_table

__all__ = ["Analysis", "analyse", "build_tables", "details_table", "leaderboard_table", "render"]
