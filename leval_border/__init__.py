"""What comes in from outside and goes out to disk: typed settings, one dialect of errors, files.

The leaf of the house: it knows none of the other packages and no heavy library.
"""
