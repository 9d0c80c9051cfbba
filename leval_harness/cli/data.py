"""`leval-harness data`: L-Eval's files, fetched and verified."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from leval_harness.cli.output import FOLDER, examples, json_option
from leval_tasks.closed.catalog import ENTRIES, ClosedTask
from leval_tasks.common import data as files
from leval_tasks.common.errors import DataError, HubUnreachableError

OTHER_SOURCE = (
    "The files are also in https://github.com/OpenLMLab/LEval, in the folder "
    "LEval-data/Closed-ended-tasks: clone it and give that folder as data_dir."
)
"""Advice where the hub does not have a file, or cannot be reached."""
MISSING = "MISSING"
"""State of a file that a folder does not have."""


@click.group(
    epilog=examples("leval-harness data fetch --out leval-data", "leval-harness data verify sample")
)
def data() -> None:
    """Fetch or verify the documents of L-Eval's closed-ended tasks."""


@data.command(epilog=examples("leval-harness data verify sample"))
@click.argument("folder", metavar="[FOLDER]", required=False)
@json_option
def verify(folder: str | None, as_json: bool) -> None:
    """Compare the files in FOLDER with the published ones.

    FOLDER holds L-Eval's JSONL files, or is the word sample for the bundled sample. Without it, the
    files of LEVAL_DATA_DIR are verified, else those of the hub. The exit code is 1 if a file is
    missing or is not the published one.
    """
    source = files.resolve_source(folder)
    rows = [_verified(source, task) for task in ENTRIES]
    if any(row["state"].startswith(MISSING) for row in rows):
        below = [files.folder_below(source.folder, task.file) for task in ENTRIES]
        elsewhere = next((text for text in below if text), "")
        click.echo(f"{source.path} lacks files{elsewhere}. {files.HOW_TO_GET}", err=True)
    _report(rows, as_json)


@data.command(epilog=examples("leval-harness data fetch --out leval-data"))
@click.option("--out", required=True, type=FOLDER, help="Folder that the files are written to.")
@json_option
def fetch(out: Path, as_json: bool) -> None:
    """Fetch all files from the Hugging Face hub and verify them.

    The exit code is 1 if a file cannot be fetched or is not the published one; only verified files
    are written.
    """
    hub = files.Source("hub", files.HUB_REPOSITORY)
    rows = []
    for task in ENTRIES:
        try:
            row = _verified(hub, task)
        except HubUnreachableError as error:  # the other files cannot be fetched either
            raise HubUnreachableError(_without_fetch_advice(error)) from None
        if row["ok"]:
            out.mkdir(parents=True, exist_ok=True)
            (out / task.file).write_bytes(files.hub_file(task).read_bytes())
        rows.append(row)
    _report(rows, as_json)


def _verified(source: files.Source, task: ClosedTask) -> dict[str, Any]:
    """Return a row on a task's file: its name, its state, and whether it can be used."""
    if not source.has(task):
        return {"file": task.file, "ok": False, "state": f"{MISSING}; {task.name} needs it"}
    try:
        file = files.load(source, task)
    except HubUnreachableError:
        raise
    except DataError as error:
        return {"file": task.file, "ok": False, "state": f"FAILED: {_without_fetch_advice(error)}"}
    if file.verified:
        return {"file": task.file, "ok": True, "state": "as published"}
    if source.kind == "sample":
        return {"file": task.file, "ok": True, "state": "bundled sample, written for this package"}
    if not task.sha256:
        return {"file": task.file, "ok": True, "state": "readable; the published hash is unknown"}
    return {"file": task.file, "ok": False, "state": "FAILED: not the published file"}


def _without_fetch_advice(error: DataError) -> str:
    """Return an error's message, with the advice to run `data fetch` replaced by another source."""
    return str(error).replace(files.HOW_TO_GET, OTHER_SOURCE)


def _report(rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    """Print a line for each file, and end with exit code 1 if one cannot be used."""
    if as_json:
        click.echo(json.dumps(rows))
    else:
        width = max(len(row["file"]) for row in rows)
        for row in rows:
            click.echo(f"  {row['file']:{width}}  {row['state']}")
    if not all(row["ok"] for row in rows):
        raise click.exceptions.Exit(1)
