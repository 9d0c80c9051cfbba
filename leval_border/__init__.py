"""Typed settings, error messages and atomic files, shared by the other packages.

It imports none of them and no heavy library.
"""
