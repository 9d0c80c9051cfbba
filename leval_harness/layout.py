"""The files of a results folder and the version of their layout: read here, written by sweeps.

<sweep>/<cell id>/cell.json            the request, with the identity whose hash is the id
results_*.json, samples_<task>_*.jsonl   lm-eval's own
log.txt              everything the cell's process printed
rope_features.json   wavelengths and feature gaps, for the figures
failed.json          why the last attempt ended without results
done.json            written last: the results' hashes; without it not done
"""

SCHEMA_VERSION = 1
"""Newest layout of `cell.json` and `done.json` that is read, and the one that is written."""

CELL, DONE, FAILED, LOG = "cell.json", "done.json", "failed.json", "log.txt"
FEATURES = "rope_features.json"
PARTIAL = "partial"
"""Prefix of the folders in which an attempt works before its files are moved into place."""
SUPERSEDED = ".superseded"
"""Folder of a sweep that holds the cells of an earlier config."""
