"""Statistics for test sets of a few documents with many questions each, on numpy, scipy and pandas.

Questions about one document succeed and fail together, so the document is the sampling unit.
"""
