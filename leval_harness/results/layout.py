"""The files of a results folder and the version of their layout.

<sweep>/sweep.json   order of the runs, names, baseline; rewritten by each start
runs/<id>/          a finished run; appears by one rename and never changes
    run.json            the request, with the identity whose hash is the id, and how it was run
    results_*.json, samples_<task>_*.jsonl   lm-eval's own
    losses_<task>_<text>_<read>.npy   nats of each token of a text, float32
    log.txt              output of the run
failed/<id>/         failed.json and log.txt of the last attempt at a run that failed
.work/               claims, unfinished runs, caches

`sweep.json` holds `schema_version`, `name`, `baseline`, `margin`, `command` and `runs`: each with
`id`, `model` (what tables call it), `method`, `context_length` and `tasks`.

In the layout before (schema 1) runs lay beside each other, `<sweep>/<id>/`, and `done.json`, which
was written last, held the SHA-256 of the other files.
"""

SCHEMA_VERSION = 2
"""Layout of `sweep.json` and `run.json` that is written, and the newest that is read."""

SWEEP, RUNS_FOLDER, FAILED_RUNS, WORK = "sweep.json", "runs", "failed", ".work"
RUN_FILE, DONE, FAILED, LOG = "run.json", "done.json", "failed.json", "log.txt"
LOSSES = "losses_"
"""Prefix of the files with the losses of tokens."""
LOSSES_OF = LOSSES + "{task}_{document}_{read}.npy"
"""Name of such a file: a text in one read."""
REFERENCE = "reference"
"""Method of the run that reads windows with the unmodified model, for all methods of it."""
SHORT_WINDOWS = "short windows"
"""What that method was called in schema 1."""
FORMATS, WRITTEN = ("csv", "html", "json", "md", "tex"), ("md", "csv", "tex", "html")
"""Of tables, and those that a sweep writes; `csv` and `json` are the compared frame itself."""
