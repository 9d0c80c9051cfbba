"""Formats of tables, for the command line: nothing is imported to know them."""

FORMATS = ("csv", "html", "json", "md", "tex")
"""`csv` and `json` are the compared frame itself, the others what people read."""

WRITTEN = ("md", "csv", "tex", "html")
"""Formats that a sweep writes beside its results."""
