"""A needle in a haystack at every depth and length, by the definitions of RULER."""
