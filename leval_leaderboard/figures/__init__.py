"""Figures of the leaderboard: curves over context length, and differences to the baseline."""

from leval_leaderboard.figures.curves import length_figure
from leval_leaderboard.figures.forest import forest_figure
from leval_leaderboard.figures.style import method_colours
from leval_leaderboard.figures.write import write_figures

__all__ = ["forest_figure", "length_figure", "method_colours", "write_figures"]
