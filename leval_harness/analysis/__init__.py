"""From rows of results to what is shown: blocks, comparisons, effective context."""

from leval_harness.analysis.entries import Analysis, Entry, analyse

__all__ = ["Analysis", "Entry", "analyse"]
