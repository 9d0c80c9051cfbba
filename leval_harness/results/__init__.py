"""Run folders and lm-eval result files, read into DataFrames."""
