"""Figures of the leaderboard: scores by context length, differences to the baseline, RoPE."""

from leval_harness.old_figures.write import write_figures

__all__ = ["write_figures"]
