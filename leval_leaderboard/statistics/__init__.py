"""Statistics for test sets of a few documents with many questions each.

Pure functions on numpy arrays; nothing here reads a file or knows a method's name.
"""
