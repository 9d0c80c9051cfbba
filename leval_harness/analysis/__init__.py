"""From rows of results to what is shown: blocks, comparisons, effective context."""
