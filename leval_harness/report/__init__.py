"""Comparison, verdict, tables, figures and page, made from the result DataFrames."""
