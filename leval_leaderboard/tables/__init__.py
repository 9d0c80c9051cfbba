"""One table model, several renderers; escaping happens at the edge, in the renderer."""

from leval_leaderboard.tables.analysis import Analysis, analyse
from leval_leaderboard.tables.build import build_tables
from leval_leaderboard.tables.details import details_table
from leval_leaderboard.tables.model import Block, Cell, Column, Row, Table
from leval_leaderboard.tables.render import FORMATS, render

__all__ = [
    "FORMATS",
    "Analysis",
    "Block",
    "Cell",
    "Column",
    "Row",
    "Table",
    "analyse",
    "build_tables",
    "details_table",
    "render",
]
