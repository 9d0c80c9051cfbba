"""The files of a results folder and the version of their layout.

<sweep>/sweep.json      order of the runs, their names, the baseline; rewritten by each start
runs/<id>/              a finished run; it appears by one rename and never changes
    run.json            the request, with the identity whose hash is the id, and how it was run
    results_*.json, samples_<task>_*.jsonl   written by lm-eval
    losses_<task>_<document>_<read>.npy      loss of each token of a document, nats, float32
    log.txt             output of the run
failed/<id>/            failed.json and log.txt of the last attempt at a run that failed
.work/                  claims, parts of runs, unfinished runs, stored answers

`sweep.json` holds `schema_version`, `name`, `baseline`, `margin`, `command` and `runs`. Each entry
of
`runs` has `id`, `model` (its name in tables), `method`, `context_length` and `tasks`.
"""

SCHEMA_VERSION = 1
"""Version of `sweep.json` and `run.json` that is written, and the newest that is read."""

SWEEP = "sweep.json"
RUNS_FOLDER = "runs"
FAILED_RUNS = "failed"
WORK = ".work"
RUN_FILE = "run.json"
FAILED = "failed.json"
LOG = "log.txt"

LOSSES = "losses_"
"""Prefix of the files with the losses of tokens."""

LOSSES_OF = LOSSES + "{task}_{document}_{read}.npy"
"""Name of such a file: one document in one read, `full` or `reference`."""

REFERENCE = "reference"
"""Method of the run that reads windows with the unmodified model, for all methods of that model."""

FORMATS, WRITTEN = ("csv", "html", "json", "md", "tex"), ("md", "csv", "tex", "html")
"""Formats of tables, and those that a sweep writes; `csv` and `json` are the compared frame itself."""
