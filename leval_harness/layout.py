"""The files of a results folder and the version of their layout.

<sweep>/<cell id>/cell.json            the request, with the identity whose hash is the id
results_*.json, samples_<task>_*.jsonl   lm-eval's own
log.txt              output of the cell's process
losses_<task>_<text>_<read>.npy   nats of each token of a text, float32
rope_features.json   wavelengths and feature gaps, for the figures
failed.json          why the last attempt ended without results
done.json            written last, with the SHA-256 of the others; without it the cell is not done
"""

SCHEMA_VERSION = 1
"""Layout of `cell.json` and `done.json` that is written, and the newest that is read."""

CELL, DONE, FAILED, LOG = "cell.json", "done.json", "failed.json", "log.txt"
FEATURES = "rope_features.json"
LOSSES = "losses_"
"""Prefix of the files with the losses of tokens."""
LOSSES_OF = LOSSES + "{task}_{document}_{read}.npy"
"""Name of such a file: a text in one read."""
SHORT_WINDOWS = "short windows"
"""Method of the cell that reads short windows for all methods of a model."""
PARTIAL = "partial"
"""Prefix of the folders in which an attempt writes before its files are moved into place."""
SUPERSEDED = ".superseded"
"""Folder of a sweep that holds the cells of an earlier config."""
DIFF_KIND, DIFF_SCHEMA = "leval-harness diff", 1
"""What begins the `diff.json` that `leval-harness diff --out` writes."""
