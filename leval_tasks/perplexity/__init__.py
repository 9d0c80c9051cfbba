"""Sliding-window perplexity tasks."""
