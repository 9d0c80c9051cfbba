"""Figures of the leaderboard: scores by context length, differences to the baseline, RoPE."""

from leval_leaderboard.figures.write import Drawn, write_figures

__all__ = ["Drawn", "write_figures"]
